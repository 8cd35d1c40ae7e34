"""What every command that answers has in common: how it is asked, and how its result is shown."""

import functools
import json
from pathlib import Path

import click

RUN_TOML = click.Path(dir_okay=False, path_type=Path)
overrides_argument = click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")

redis_option = click.option(
    "--redis", "redis_url", metavar="URL", help="Instead of REDIS_URL and the run's own server."
)


def run_argument(command):
    """RUN: a name, a folder or a TOML file; none needed where there is one run. `--run RUN` says the same."""

    @click.argument("run", required=False)
    @click.option("--run", "named", metavar="RUN", hidden=True)
    @functools.wraps(command)
    def with_run(*args, run, named, **others):
        if run is not None and named is not None:
            raise click.UsageError(f"one run, please: found {run!r} and --run {named!r}")
        return command(*args, run=run or named, **others)

    return with_run


json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable.")


def show(result, as_json: bool) -> None:
    """A report: a dict, or a list of dicts with the same keys."""
    from pipeline.table import table

    click.echo(json.dumps(result, default=str) if as_json else table(result))
