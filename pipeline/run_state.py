"""Whether a run is up, in one sentence: what Redis holds of a run that has ended looks as if it still went on.

            a `headrace up` here holds its folder, or processes elsewhere report to its Redis
up          yes
stopped     no matter: it has stopped itself, and says why
finished    no, and all updates are made
down        no
"""

from dataclasses import dataclass
from typing import Any

from pipeline.config import Config
from pipeline.redis_client import find_url
from pipeline.run_folder import holder_of


@dataclass(frozen=True)
class RunState:
    name: str  # up | stopped | finished | down
    sentence: str

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence}"


def run_state(
    config: Config, status: dict[str, Any], processes: list[dict[str, Any]], redis_url: str | None = None
) -> RunState:
    """status: of LedgerView; processes: of progress.read_processes; redis_url: as the command was given it."""
    version, total, name = status["version"], config.run.total_steps, config.run.name
    holder = holder_of(config.folder)
    # a run's own Redis ends with it, and may hold a last word of those that were killed with it
    elsewhere = holder is None and find_url(redis_url, config.redis.url) is not None and processes
    if status["stopped"]:
        return RunState("stopped", status["stopped"])
    if holder is not None:
        return RunState("up", f"`headrace up`, process {holder.get('pid', '?')}")
    if elsewhere:
        return RunState("up", f"{len(processes)} processes report to its Redis")
    if version >= total:
        return RunState("finished", f"all {total} updates are made")
    return RunState("down", f"nothing runs, {version} of {total} updates are made; `headrace up` goes on with {name}")
