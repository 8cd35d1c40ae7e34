"""`make bench`: what the ledger costs, as a table. `python -m tests.bench scripts` measures one part only.

A missed target is a result, in the table; only a measurement that is impossible ends with exit code 1.
"""

import json
from dataclasses import asdict

import click
import redis

from tests.bench import episodes, lifecycles, memory, sandbox, scripts, tensors
from tests.bench.result import markdown
from tests.bench.server import started

PARTS = {
    "scripts": scripts.measure,
    "lifecycles": lifecycles.measure,
    "tensors": tensors.measure,
    "memory": memory.measure,
    "episodes": episodes.measure,
    "sandbox": sandbox.measure,
}


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)))
@click.option("--json", "as_json", is_flag=True, help="JSON instead of the table.")
def main(parts: tuple[str, ...], as_json: bool) -> None:
    """Measure PARTS (all of them by default), each on a Redis of its own."""
    results, conditions = [], {}
    for name in parts or PARTS:
        with started() as server:
            conditions[name] = server.conditions()
            try:
                results += PARTS[name](server)
            except (RuntimeError, redis.RedisError) as error:
                raise click.ClickException(f"{name} cannot be measured: {error}") from error
    if as_json:
        measured = {"conditions": conditions, "results": [asdict(r) for r in results]}
        click.echo(json.dumps(measured, ensure_ascii=False))
        return
    click.echo(markdown(results))
    for name, found in conditions.items():
        click.echo(f"{name}: {found}")


if __name__ == "__main__":
    main()
