"""`make bench`: what the ledger costs, as a table. `python -m tests.bench scripts` measures one part only.

A missed target is a result, in the table; only a measurement that is impossible ends with exit code 1.
"""

import json
from dataclasses import asdict

import click

from tests.bench import lifecycles, memory, scripts, tensors
from tests.bench.result import markdown
from tests.bench.server import started

PARTS = {
    "scripts": scripts.measure,
    "lifecycles": lifecycles.measure,
    "tensors": tensors.measure,
    "memory": memory.measure,
}


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)))
@click.option("--json", "as_json", is_flag=True, help="One JSON list instead of the table.")
def main(parts: tuple[str, ...], as_json: bool) -> None:
    """Measure PARTS (all of them by default), each on a Redis of its own."""
    results = []
    for name in parts or PARTS:
        with started() as server:
            results += PARTS[name](server)
    click.echo(json.dumps([asdict(r) for r in results], ensure_ascii=False) if as_json else markdown(results))


if __name__ == "__main__":
    main()
