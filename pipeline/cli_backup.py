"""The commands that keep a run safe: a backup of all of it, and a run made of one.

headrace backup RUN ─▶ demo-30.tar ─▶ headrace restore demo-30.tar       here or elsewhere
"""

from pathlib import Path

import click

from pipeline.cli_options import json_option, redis_option, show


@click.command()
@click.argument("run")
@click.option("-o", "--output", "file", type=click.Path(path_type=Path), help="Default: NAME-VERSION.tar here.")
@redis_option
@json_option
def backup(run, file, redis_url, as_json):
    """All that RUN needs to go on, up or not, as one tar file: its newest checkpoint, its ledger, its weights."""
    from pipeline.backup import backup

    show(backup(run, file, redis_url), as_json)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--folder", type=click.Path(path_type=Path), default=Path("runs"), help="Of all runs.", show_default=True)
@redis_option
@json_option
def restore(file, folder, redis_url, as_json):
    """The run that FILE is a backup of, as it was; it is not started, and nothing is overwritten."""
    from pipeline.restore import restore

    show(restore(file, folder, redis_url), as_json)


COMMANDS = (backup, restore)
