"""All engines of a run: which there are, and what they serve. Each is looked after by a thread of its own.

follow(weights), every pass:
    engine_list ─▶ wanted ─┬▶ new: a Keeper         ledger: what is not wanted is removed
                           └▶ each: Keeper.step, unless it is still at its last one
    waits half a second for them, so that an engine which drains or hangs holds up nobody else
"""

import threading
import time
from collections.abc import Sequence

from pipeline import engine_list
from pipeline.coordinator import Coordinator
from pipeline.engine_keeper import Keeper, Publication
from pipeline.ledger_types import Weights

PASS_S = 0.5


class EngineFleet:
    """given: URLs of engine-0, engine-1, …; a person may add others, and remove any."""

    def __init__(self, coordinator: Coordinator, given: Sequence[str], publication: Publication):
        self._coordinator, self._given, self._publication = coordinator, given, publication
        self._steps: dict[str, _Step] = {}  # the last one of each engine
        self.keepers: dict[str, Keeper] = {}

    def introduce(self) -> dict[str, str]:
        """Make ledger and keepers agree with what is wanted; one at a new address must prove itself first.
        Returns name -> state in the ledger."""
        run, known = self._coordinator.run, {engine.name: engine for engine in self._coordinator.engines()}
        wanted = engine_list.wanted(self._coordinator.client, run, self._given)
        for name in known.keys() - wanted:
            self._coordinator.remove_engine(name)
        kept = {name: keeper for name, keeper in self.keepers.items() if wanted.get(name) == keeper.engine.url}
        new = {name: Keeper(name, url, self._coordinator, self._publication) for name, url in wanted.items()}
        self.keepers = new | kept
        for name in wanted:
            if name not in known or known[name].url != wanted[name]:
                self.keepers[name].introduce()
        return {name: engine.state for name, engine in known.items() if name in wanted}

    def follow(self, weights: Weights) -> bool:
        """One pass; True once every engine that works, and at least one, serves `weights`."""
        states = self.introduce()
        # The oldest weights first: whoever steps first may stop, and the others would serve theirs for ever.
        for name, keeper in sorted(self.keepers.items(), key=lambda item: _served(item[1])):
            keeper.wanted, step = weights, self._steps.get(name)
            if step is None or not step.is_alive():
                self._steps[name] = _Step(keeper, states.get(name))
        self.finish(PASS_S)
        working = [keeper for keeper in self.keepers.values() if not keeper.problem]
        return bool(working) and all(keeper.serves and keeper.serves.version == weights.version for keeper in working)

    def finish(self, timeout_s: float) -> None:
        """Wait for the steps that are being made; one that takes longer goes on. Raises what a step could not mend."""
        end = time.monotonic() + timeout_s
        for name, step in list(self._steps.items()):
            step.join(max(0.0, end - time.monotonic()))
            if not step.is_alive():
                del self._steps[name]
                if step.error is not None:
                    raise step.error

    @property
    def versions(self) -> set[int]:
        """Versions that engines serve, or are being given."""
        serves = {keeper.serves.version for keeper in self.keepers.values() if keeper.serves}
        return serves | {keeper.loading for keeper in self.keepers.values()} - {None}

    @property
    def loading(self) -> list[str]:
        """What engines are being given, one sentence each."""
        return [f"{k.name} to serve version {k.loading}" for k in self.keepers.values() if k.loading is not None]

    @property
    def problems(self) -> list[str]:
        """What is wrong, one sentence for each engine that is not routed to."""
        return [f"{keeper.name}: {keeper.problem}" for keeper in self.keepers.values() if keeper.problem]

    def __str__(self) -> str:
        """What each engine serves, such as "engine-0 v12, engine-1 -"."""
        return ", ".join(f"{k.name} {f'v{k.serves.version}' if k.serves else '-'}" for k in self.keepers.values())


def _served(keeper: Keeper) -> int:
    return keeper.serves.version if keeper.serves else -1


class _Step(threading.Thread):
    def __init__(self, keeper: Keeper, state: str | None):
        super().__init__(daemon=True)
        self._keeper, self._state = keeper, state
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._keeper.step(self._state)
        except BaseException as error:  # raised again by whoever waits for this step
            self.error = error
