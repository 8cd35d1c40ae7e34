"""The processes of a run while it trains: started, started again when they die, workers as many as are wanted.

    headrace workers scale N ──▶ hr:{run}:launcher  workers = "worker-0 worker-1 …" ──▶ Crew.look()
                                                    a name too many is drained, one too few is started

A trainer that ended well ends the run. Exit code 2 says that trying again cannot help.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from redis import Redis

from pipeline import engine_list, keys, programs
from pipeline.config import Config
from pipeline.engine_processes import EngineProcess
from pipeline.errors import UnknownRun
from pipeline.ledger_view import LedgerView
from pipeline.supervisor import Exit, ProcessFailed, Supervisor

RESTARTS = {"coordinator": 5, "worker": 5, "engine": 3, "trainer": 2}  # in a row
DRAINED = 0
WRONG_SETTINGS = 2


def wanted_workers(client: Redis, run: str) -> list[str]:
    """Names of the workers that the local launcher shall keep running."""
    return (client.hget(keys.launcher(run), "workers") or b"").decode().split()


def want_workers(client: Redis, run: str, names: Sequence[str]) -> None:
    client.hset(keys.launcher(run), "workers", " ".join(names))


def scaled(names: Sequence[str], count: int) -> list[str]:
    """`count` names: the first ones of `names`, then the smallest numbers that are free."""
    kept = list(names[:count])
    number = 0
    while len(kept) < count:
        if f"worker-{number}" not in kept:
            kept.append(f"worker-{number}")
        number += 1
    return kept


@dataclass
class Crew:
    config: Config
    supervisor: Supervisor
    client: Redis
    redis_url: str
    engines: Sequence[EngineProcess]
    say: Callable[[str], None]
    trained: bool = False
    _published: int = 0  # the version when the trainer ended last
    _drained: set[str] = field(default_factory=set)
    _exits: list[Exit] = field(default_factory=list)  # not dealt with yet: Redis may be away meanwhile

    def start(self) -> None:
        want_workers(self.client, self.config.run.name, scaled([], self.config.rollout.workers))  # Redis may be away
        engine_list.forget(self.client, self.config.run.name)
        urls = self.config.engines.urls or [engine.url for engine in self.engines]
        self.supervisor.start(programs.coordinator(self.config, self.redis_url, urls))
        self.supervisor.start(programs.trainer(self.config, self.redis_url))

    def look(self) -> None:
        """Notice what ended and what is wanted. Raises ProcessFailed for what cannot be started again."""
        self._exits += self.supervisor.check()
        while self._exits:
            self._ended(self._exits[0])
            self._exits.pop(0)
        self.supervisor.restart_due()
        self._follow_wanted()

    def _ended(self, exit: Exit) -> None:
        kind = role(exit.name)
        if kind == "trainer" and exit.returncode == 0 and self._all_updates_made():
            self.trained = True
        elif kind == "worker" and exit.process.deadline is not None:
            return  # too many once; wanted anew meanwhile, it starts again
        elif kind == "worker" and exit.returncode == DRAINED:
            self._drained.add(exit.name)
        elif self.trained and exit.returncode == 0:
            return
        elif exit.returncode == WRONG_SETTINGS:
            raise ProcessFailed(str(exit))
        elif why := self._fields().get("stopped"):
            raise ProcessFailed(f"the run has stopped itself: {why}")
        elif (pause := self.supervisor.restart_later(exit, RESTARTS[kind], self._worked(kind))) is None:
            raise ProcessFailed(f"{exit}\nit failed {RESTARTS[kind] + 1} times in a row")
        else:
            self.say(f"{exit.summary}; it starts again in {pause:g} s (log: {exit.process.program.log})")

    def _worked(self, kind: str) -> bool:
        """A trainer that has published since it ended last is not at its wit's end, however often it dies."""
        if kind != "trainer":
            return False
        before, self._published = self._published, int(self._fields().get("version", 0))
        return self._published > before

    def _all_updates_made(self) -> bool:
        """A trainer that somebody else stopped ends well too."""
        return int(self._fields().get("version", 0)) >= self.config.run.total_steps

    def _fields(self) -> dict[str, str]:
        try:
            return LedgerView(self.client, self.config.run.name).fields()
        except UnknownRun:  # not made yet, or lost; the coordinator makes it (again)
            return {}

    def _follow_wanted(self) -> None:
        wanted = set(wanted_workers(self.client, self.config.run.name))
        running = {name for name in self.supervisor.names if role(name) == "worker"}
        self._drained &= wanted  # a name that is wanted anew after its drain starts again
        for name in sorted(wanted - running - self._drained):
            self.supervisor.start(programs.worker(self.config, name, self.redis_url))
        for name in running - wanted:
            self.supervisor.drain(name)


def role(name: str) -> str:
    return name.rsplit("-", 1)[0]
