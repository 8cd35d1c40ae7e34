"""A report as text: what every command without --json prints.

{"version": 3, "engines": [{"name": …}]}  ──▶  version  3

                                               engines
                                               name  url  …
"""

from typing import Any


def table(result: dict[str, Any] | list[dict[str, Any]]) -> str:
    """Columns for a list of rows; `key: value` lines for a dict, with its lists below."""
    if isinstance(result, dict):
        plain = {key: value for key, value in result.items() if not _is_rows(value)}
        width = max(map(len, plain), default=0)
        lines = [f"{key:<{width}}  {_cell(value)}" for key, value in plain.items()]
        below = [f"\n{key}\n{table(value)}" for key, value in result.items() if _is_rows(value) and value]
        return "\n".join(lines + below)
    if not result:
        return "(none)"
    names = list(result[0])
    rows = [[_cell(row.get(name, "")) for name in names] for row in result]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    return "\n".join(
        "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in [names, *rows]
    )


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(v)}" for key, v in value.items()) or "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value in ("", None) else str(value)
