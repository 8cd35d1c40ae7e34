"""`make bench`: what the parts cost, as a table. `python -m tests.bench scripts` measures one part only.

    on a Redis of their own   the ledger, the workers            without one   the trainer, games

A missed target is a result, in the table; only a measurement that is impossible ends with exit code 1.
"""

import json
from dataclasses import asdict
from importlib import import_module

import click

from tests.bench.result import Result, markdown

# A part is imported once it is asked for: a machine with a GPU may have neither Redis nor its client.
ON_REDIS = ("scripts", "lifecycles", "tensors", "memory", "episodes", "sandbox", "publication", "idle")
ALONE: tuple[str, ...] = ("update", "vocabulary", "alfworld", "gpu")


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice([*ON_REDIS, *ALONE]))
@click.option("--json", "as_json", is_flag=True, help="JSON instead of the table.")
def main(parts: tuple[str, ...], as_json: bool) -> None:
    """Measure PARTS (all of them by default)."""
    results, conditions = [], {}
    for name in parts or (*ON_REDIS, *ALONE):
        measure = import_module(f"tests.bench.{name}").measure
        results += measure() if name in ALONE else _on_redis(name, measure, conditions)
    if as_json:
        measured = {"conditions": conditions, "results": [asdict(r) for r in results]}
        click.echo(json.dumps(measured, ensure_ascii=False))
        return
    click.echo(markdown(results))
    for name, found in conditions.items():
        click.echo(f"{name}: {found}")


def _on_redis(name: str, measure, conditions: dict) -> list[Result]:
    import redis

    from tests.bench.server import started

    with started() as server:
        conditions[name] = server.conditions()
        try:
            return measure(server)
        except (RuntimeError, redis.RedisError) as error:
            raise click.ClickException(f"{name} cannot be measured: {error}") from error


if __name__ == "__main__":
    main()
