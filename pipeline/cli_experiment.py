"""`headrace experiment`: matched runs that differ in what is compared alone, and what they say together."""

import click

from pipeline.cli_options import RUN_TOML, overrides_argument, redis_option


@click.command()
@click.argument("spec_toml", type=RUN_TOML)
@overrides_argument
@click.option("--report", "only_report", is_flag=True, help="Make no run: write the report of those that there are.")
@redis_option
def experiment(spec_toml, overrides, only_report, redis_url):
    """Make all runs of SPEC_TOML, seeds × methods × settings, and compare them. The same command goes on."""
    from pipeline import experiment

    if only_report:
        click.echo(experiment.report(spec_toml, overrides))
        return 0
    return experiment.run(spec_toml, overrides, redis_url)
