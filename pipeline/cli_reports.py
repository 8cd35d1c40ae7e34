"""The commands on a run that is there: what it does, and what a person tells it.

    headrace status | buffers | events | prompts list | workers list | plot | audit     read it
    headrace engines list
    headrace workers scale | workers drain | engines add | engines remove | down       tell it

reports.py, plot.py and audit.py do the work; cli.py adds the COMMANDS to `headrace`.
"""

import json

import click

from pipeline.cli_options import json_option, redis_option, run_argument, show


@click.command()
@run_argument
@json_option
def down(run, as_json):
    """Stop a run that is up, in order; it can be resumed."""
    from pipeline import reports

    _tell(reports.down(run), as_json)


@click.command()
@run_argument
@redis_option
@json_option
def status(run, redis_url, as_json):
    """Where a run is, and what each of its processes does or waits for."""
    from pipeline import reports
    from pipeline.run_folder import find_run

    with reports.ledger_of(run, redis_url) as ledger:
        show(reports.status(ledger, find_run(run), redis_url), as_json)


@click.command()
@run_argument
@redis_option
@json_option
def buffers(run, redis_url, as_json):
    """The staleness buffers: state, entries occupied and reserved."""
    from pipeline import reports

    with reports.ledger_of(run, redis_url) as ledger:
        show(reports.buffers(ledger), as_json)


@click.command()
@run_argument
@redis_option
@json_option
@click.option("--count", default=20, show_default=True, help="How many of the newest.")
@click.option("--follow", is_flag=True, help="Go on as they happen, until Ctrl-C.")
def events(run, redis_url, as_json, count, follow):
    """The transitions of the ledger, one line each."""
    from pipeline import reports

    with reports.ledger_of(run, redis_url) as ledger:
        for event in reports.events(ledger, count, follow):
            click.echo(json.dumps(event) if as_json else reports.event_line(event))


@click.group()
def prompts():
    """The prompts of a run."""


@prompts.command("list")
@run_argument
@redis_option
@json_option
@click.option("--count", default=20, show_default=True, help="How many; 0 shows all.")
def prompts_list(run, redis_url, as_json, count):
    """Prompts with their value and evidence, the most uncertain first."""
    from pipeline import reports

    with reports.ledger_of(run, redis_url) as ledger:
        show(reports.prompts(ledger, count), as_json)


@click.group()
def workers():
    """The rollout workers of a run."""


@workers.command("list")
@run_argument
@redis_option
@json_option
def workers_list(run, redis_url, as_json):
    """Every worker: what it does, and how many entries it has in flight."""
    from pipeline import reports

    with reports.ledger_of(run, redis_url) as ledger:
        show(reports.workers(ledger), as_json)


@workers.command()
@click.argument("count", type=click.IntRange(min=0))
@run_argument
@redis_option
@json_option
def scale(count, run, redis_url, as_json):
    """Have COUNT workers in a run that is up, or in the stack of docker compose here; those too many finish what they
    have first."""
    from pipeline import compose_stack, reports, run_folder

    if not run_folder.is_up(run) and compose_stack.is_up():
        _tell(compose_stack.scale(count), as_json)
        return
    with reports.ledger_of(run, redis_url, up=True) as ledger:
        _tell(reports.scale(ledger, count), as_json)


@workers.command()
@click.argument("worker")
@run_argument
@redis_option
@json_option
def drain(worker, run, redis_url, as_json):
    """Let one WORKER (a name of `workers list`) finish what it has and end."""
    from pipeline import reports

    with reports.ledger_of(run, redis_url) as ledger:
        _tell(reports.drain(ledger, worker), as_json)


@click.group()
def engines():
    """The SGLang servers of a run."""


@engines.command("list")
@run_argument
@redis_option
@json_option
def engines_list(run, redis_url, as_json):
    """Every engine: what it serves, and why nothing is routed to it if it is not ready."""
    from pipeline import reports

    with reports.ledger_of(run, redis_url) as ledger:
        show(reports.engines(ledger), as_json)


@engines.command("add")
@click.argument("url")
@run_argument
@redis_option
@json_option
def engines_add(url, run, redis_url, as_json):
    """Let the SGLang server at URL join: it is given the newest weights, and work once it has proved them."""
    from pipeline import reports

    with reports.ledger_of(run, redis_url, tell=True) as ledger:
        _tell(reports.add_engine(ledger, url), as_json)


@engines.command("remove")
@click.argument("engine")
@run_argument
@redis_option
@json_option
def engines_remove(engine, run, redis_url, as_json):
    """Let ENGINE (a name of `engines list`) leave: nothing new goes to it, what it generates is still used."""
    from pipeline import reports

    with reports.ledger_of(run, redis_url, tell=True) as ledger:
        _tell(reports.remove_engine(ledger, engine), as_json)


@click.command()
@run_argument
@json_option
@click.option("--svg", is_flag=True, help="curves.svg instead of curves.png.")
def plot(run, as_json, svg):
    """Draw a run's curves, also while it goes on."""
    from pipeline.plot import plot
    from pipeline.run_folder import find_run

    path = plot(find_run(run).folder, "svg" if svg else "png")
    click.echo(json.dumps({"curves": str(path)}) if as_json else path)


@click.command()
@run_argument
@redis_option
@json_option
def audit(run, redis_url, as_json):
    """Check every invariant of the ledger on all that a run has done; exit code 1 if one was violated."""
    from pipeline import audit_report
    from pipeline.audit import audit
    from pipeline.run_folder import find_run

    config = find_run(run)
    findings = audit(config, redis_url)
    name = config.run.name
    click.echo(json.dumps(audit_report.as_dict(name, findings)) if as_json else audit_report.text(name, findings))
    return 0 if findings.clean else 1


def _tell(result: dict, as_json: bool) -> None:
    """What was done: its `message` for a person."""
    click.echo(json.dumps(result) if as_json else result["message"])


COMMANDS = (down, status, buffers, events, prompts, workers, engines, plot, audit)
