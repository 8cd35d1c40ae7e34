"""`headrace`: one command line for everything. Each command imports what it needs, so that --help answers at once.

    cli.py                  settings, `up`, `eval`, `doctor`
    cli_processes.py        one process of a run each
    cli_checkpoints.py      what it has trained: export, fork
    cli_backup.py           all of it: backup, restore
    cli_reports.py          a run that is there: read it, tell it
    cli_look.py             a run that is there: watch it
    cli_environments.py     a user's own environment, before it trains
    cli_experiment.py       matched runs, and what they say together

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 130 stopped by Ctrl-C.
"""

import json
import subprocess
import sys

import click

from pipeline import cli_backup, cli_checkpoints, cli_environments, cli_experiment, cli_look, cli_processes, cli_reports
from pipeline.cli_options import RUN_TOML, json_option, overrides_argument, redis_option, run_argument, show


def main() -> None:
    """Run the command line; turn expected errors into one message and an exit code."""
    from pipeline.errors import ConfigError, HeadraceError

    try:
        sys.exit(cli.main(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # its own message is on the terminal
    except ConfigError as error:
        _fail(error, 2)
    except HeadraceError as error:
        _fail(error, 1)
    except Exception as error:
        from redis import RedisError  # not at the top: --help need not wait for it

        if not isinstance(error, RedisError):
            raise
        _fail(f"Redis does not answer as it should: {error}; start it again, then this command", 1)


def _fail(error: Exception | str, code: int) -> None:
    from pipeline.secrets import masked

    click.echo(f"headrace: {masked(str(error))}", err=True)
    sys.exit(code)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli():
    """Asynchronous agentic RL post-training that one person can run, see and trust.

    \b
    A first run:   headrace init demo --recipe demo
                   headrace up demo.toml
    """


for command in (
    *cli_processes.COMMANDS,
    *cli_backup.COMMANDS,
    *cli_checkpoints.COMMANDS,
    *cli_reports.COMMANDS,
    *cli_look.COMMANDS,
    cli_environments.environments,
    cli_experiment.experiment,
):
    cli.add_command(command)


# -- a run's settings


@cli.command()
@click.argument("name")
@click.option("--recipe", required=True, help="One of `headrace recipes`.")
def init(name, recipe):
    """Write NAME.toml from a recipe."""
    from pipeline import recipe_files

    path = recipe_files.write(name, recipe)
    click.echo(f"{path} is written; change it as you like, then `headrace up {path}`")


@cli.command()
@json_option
def recipes(as_json):
    """The settings that come with headrace."""
    from pipeline import recipe_files

    show(recipe_files.described(), as_json)


@cli.command()
@click.argument("run_toml", type=RUN_TOML)
@overrides_argument
@json_option
def validate(run_toml, overrides, as_json):
    """Check a run's settings; nothing is started."""
    from pipeline.config_file import load
    from pipeline.config_rules import unwise
    from pipeline.environment_rules import check_environment
    from pipeline.metrics import check

    config = load(run_toml, overrides)
    check_environment(config.environment)
    check(config)
    warnings = list(unwise(config))
    if as_json:
        click.echo(json.dumps({"digest": config.digest, "folder": str(config.folder), "warnings": warnings}))
        return
    for warning in warnings:
        click.echo(f"warning: {warning}")
    click.echo(f"{run_toml} is valid: run {config.run.name}, digest {config.digest}, folder {config.folder}")


# -- a run


@cli.command()
@click.argument("run_toml", type=RUN_TOML)
@overrides_argument
@redis_option
def up(run_toml, overrides, redis_url):
    """Train: start everything on this machine. The same command resumes a run that was stopped."""
    from pipeline.launch import up

    return up(run_toml, list(overrides), redis_url)


@cli.command("eval")
@click.argument("checkpoint")
@run_argument
@click.option("--engine", metavar="URL", help="An idle SGLang server to load it into; else one is started.")
@json_option
def evaluate(checkpoint, run, engine, as_json):
    """Success of CHECKPOINT, a folder of weights or a version's number, on the run's held-out problems."""
    from pipeline.evaluate_checkpoint import evaluate

    show(evaluate(checkpoint, run, engine), as_json)


@cli.command()
@click.argument("run_toml", type=RUN_TOML, required=False)
@json_option
def doctor(run_toml, as_json):
    """What this machine lacks for a run, with a fix for each finding; RUN_TOML says for which."""
    from pipeline.config_file import load
    from pipeline.doctor import examine

    findings = examine(run_toml and load(run_toml))
    if as_json:
        click.echo(json.dumps(findings))
    else:
        for finding in findings:
            fix = f"\n      fix: {finding['fix']}" if not finding["ok"] else ""
            click.echo(f"{'ok  ' if finding['ok'] else 'BAD '}{finding['check']}: {finding['found']}{fix}")
    return 0 if all(finding["ok"] for finding in findings) else 1


if __name__ == "__main__":
    main()
