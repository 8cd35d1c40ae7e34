"""The commands that show a run while it goes on: a live screen, a page, and followers of its files.

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


@click.command()
@run_argument
@redis_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Another address lets others read it.")
@click.option("--port", type=click.IntRange(0, 65535), default=8787, show_default=True, help="0 takes a free one.")
def web(run, redis_url, host, port):
    """A page with the same live picture, read-only, until Ctrl-C."""
    from pipeline import web
    from pipeline.onlooker import Onlooker
    from pipeline.run_folder import find_run

    config = find_run(run)
    onlooker = Onlooker(config, redis_url)
    with onlooker.watching(web.LOOK_S), web.Server(config, onlooker, host, port) as server:
        if not server.loopback:
            click.echo(f"whoever reaches {host} can read this page; it shows no prompts and no trajectories")
        click.echo(f"{config.run.name} is shown at {server.url} until Ctrl-C")
        server.serve_forever()


@click.command()
@run_argument
@click.option("--follow", is_flag=True, help="Go on as lines come, until Ctrl-C.")
def tensorboard(run, follow):
    """Write a run's metrics and evaluations as TensorBoard's event files, also while it goes on."""
    from pipeline import tensorboard
    from pipeline.run_folder import find_run

    tensorboard.follow(find_run(run).folder, follow, click.echo)


@click.command()
@run_argument
@click.option("--follow", is_flag=True, help="Go on as lines come, until Ctrl-C.")
def wandb(run, follow):
    """Send a run's metrics and evaluations to Weights & Biases; WANDB_MODE=offline writes files for `wandb sync`."""
    from pipeline import weights_and_biases
    from pipeline.run_folder import find_run

    weights_and_biases.follow(find_run(run).folder, follow, click.echo)


COMMANDS = (top, web, tensorboard, wandb)
