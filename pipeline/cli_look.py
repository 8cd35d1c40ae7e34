"""The commands that show a run while it goes on: a live screen, a page, and the followers of its files.

headrace top RUN       this terminal        headrace web RUN          a page on 127.0.0.1
headrace plot RUN      curves.png, .svg     headrace tensorboard RUN  event files
"""

import click

from pipeline.cli_options import redis_option, run_argument


@click.command()
@run_argument
@redis_option
def top(run, redis_url):
    """A live screen of a run: buffers, engines, workers, reward, and what is waited for. q ends it."""
    from pipeline.run_folder import find_run
    from pipeline.top import top

    top(find_run(run), redis_url)


COMMANDS = (top,)
