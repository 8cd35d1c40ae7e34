"""`headrace environments`: what a user's own environment is tried with before it trains, and games for ALFWorld."""

import os

import click


@click.group()
def environments():
    """Environments: the tasks that episodes are about."""


@environments.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="FILE.py:Class [OPTIONS]")
def check(arguments):
    """Play FILE.py:Class with replies of every kind: one line a rule, exit code 1 if one is broken.

    -h shows the options.
    """
    from pipeline import programs

    variables = programs.environment() | {"HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "0")}  # --data hf:…
    programs.become([*programs.PYTHON, "-m", "workers.environments.conformance", *arguments], variables)


@environments.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="FOLDER [OPTIONS]")
def alfworld(arguments):
    """Make games for ALFWorld in FOLDER: the 128 canonical ones, and 64 in rooms that those have none of.

    Each is solved by the planner and won on replay. -h shows the options.
    """
    from pipeline import programs

    programs.become(
        [*programs.PYTHON, "-m", "workers.environments.alfworld.generate", *arguments], programs.environment()
    )
