"""What every command that answers has in common: how it is asked, and how its result is shown."""

import json

import click

redis_option = click.option(
    "--redis", "redis_url", metavar="URL", help="Instead of REDIS_URL and the run's own server."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable.")


def show(result, as_json: bool) -> None:
    """A report: a dict, or a list of dicts with the same keys."""
    from pipeline import reports

    click.echo(json.dumps(result, default=str) if as_json else reports.table(result))
