"""The commands on what a run has trained: take a version of it elsewhere, or go on from it with other settings.

headrace export RUN FOLDER     a plain Hugging Face folder          headrace fork RUN --from 30     a new run
"""

from pathlib import Path

import click

from pipeline.cli_options import json_option, overrides_argument, show


@click.command()
@click.argument("run")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--version", type=click.IntRange(min=0), help="Of weights or a checkpoint; default: the newest.")
@json_option
def export(run, folder, version, as_json):
    """Write a version of RUN to FOLDER, for AutoModelForCausalLM and whatever else loads a Hugging Face folder."""
    from pipeline.export import export

    show(export(run, folder, version), as_json)


@click.command()
@click.argument("run")
@overrides_argument
@click.option("--from", "version", type=click.IntRange(min=0), help="A checkpoint's version; default: the newest.")
@json_option
def fork(run, overrides, version, as_json):
    """A new run, run.name=NAME, that begins with the policy of a checkpoint of RUN, whatever settings are changed."""
    from pipeline.fork import fork

    show(fork(run, version, overrides), as_json)


COMMANDS = (export, fork)
