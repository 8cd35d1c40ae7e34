"""`headrace experiment`: matched runs that differ in what is compared alone, and what they say together."""

from pathlib import Path

import click

from pipeline.cli_options import redis_option


@click.command()
@click.argument("spec_toml", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
@click.option("--report", "only_report", is_flag=True, help="Make no run: write the report of those that there are.")
@redis_option
def experiment(spec_toml, overrides, only_report, redis_url):
    """Make all runs of SPEC_TOML, seeds × methods × settings, and compare them. The same command goes on."""
    from pipeline import experiment

    if only_report:
        click.echo(experiment.report(spec_toml, overrides))
        return 0
    return experiment.run(spec_toml, overrides, redis_url)
