"""What the lengths alone allow: a case played without any overhead, from one event to the next.

    admit ─▶ engine: queue, slot ─▶ finished ─▶ READY ─▶ trained ─▶ published ─▶ engines load

The ledger's rules are those of its model. Nothing is waited for but replies, updates and loads. It is no strict bound:
every rule acts at once and without foresight, so that a delay may happen to fall well.
"""

import math
from dataclasses import dataclass

from pipeline.ledger_types import Reservation
from tests.pipeline.ledger_machine.model import Model
from tests.sweep.case import ENGINES, LOAD_S, PROMPTS, SLOTS, TOKEN_S, UPDATE_S, UPDATES, Case, Outcome

NEVER = math.inf


@dataclass
class Engine:
    version: int = 0
    state: str = "ready"  # draining · loading
    ends: float = NEVER  # when it has loaded


@dataclass
class Reply:
    version: int
    length: int
    left: float  # seconds
    engine: str | None  # None: interrupted, and no engine may go on with it
    ends: float = NEVER  # unless it has a slot


class Bound:
    def __init__(self, case: Case):
        self.case, self.model = case, Model(case.buffers, [f"p{n}" for n in range(PROMPTS)])
        self.engines = {f"engine-{n}": Engine() for n in range(ENGINES)}
        self.replies: dict[str, Reply] = {}  # by entry, in the order in which they came to their engines
        self.lengths: dict[str, int] = {}
        self.trained: list[int] = []
        self.now, self.updated = 0.0, NEVER
        self.model.join("trainer", 0, [])
        for name in self.engines:
            self.model.load(name, 0)

    def run(self) -> Outcome:
        while True:
            self.train()
            self.publish()
            self.route()
            if self.model.version == UPDATES:
                return Outcome(self.now, self.trained, list(self.lengths.values()))
            under_way = [*self.engines.values(), *self.replies.values()]
            self.now = min([self.updated, *(each.ends for each in under_way)])
            self.happen()

    def happen(self) -> None:
        """Whatever ends now."""
        for name in [name for name, reply in self.replies.items() if reply.ends == self.now]:
            del self.replies[name]
            self.model.occupy(name, [1.0])
        if self.updated == self.now:
            self.updated = NEVER
            self.model.publish("trainer", self.model.head)
            self.model.checkpoint("trainer", self.model.head)
        for name, engine in self.engines.items():
            if engine.ends == self.now:
                engine.state, engine.ends = "ready", NEVER
                self.model.load(name, engine.version)

    def train(self) -> None:
        head = self.model.head
        if self.updated == NEVER and self.model.ready(head) and head < UPDATES:
            self.trained += [self.lengths[name] for name in self.model.consume("trainer", head)]
            self.updated = self.now + UPDATE_S

    def publish(self) -> None:
        """Every engine gets the newest version; in turns: the one with the oldest is next."""
        drained = self.case.policy == "drain"
        for name, engine in sorted(self.engines.items(), key=lambda item: item[1].version):
            turn = not self.case.in_turns or all(other.state == "ready" for other in self.engines.values())
            if turn and engine.state == "ready" and engine.version < self.model.version:
                engine.state = "draining"
                del self.model.engines[name]
            if engine.state == "draining" and not (drained and self.at(name)):
                engine.state, engine.version, engine.ends = "loading", self.model.version, self.now + LOAD_S
                for reply in self.at(name):
                    reply.left, reply.ends = min(reply.left, reply.ends - self.now), NEVER
                    reply.engine = None if self.case.policy == "interrupt" else name

    def at(self, engine: str) -> list[Reply]:
        return [reply for reply in self.replies.values() if reply.engine == engine]

    def order(self, at_least: int = 0) -> list[str]:
        """As workers/routing.py: ready engines, the least loaded first."""
        names = [n for n, e in self.engines.items() if e.state == "ready" and e.version >= at_least]
        return sorted(names, key=lambda name: (len(self.at(name)), name))

    def route(self) -> None:
        """Cancelled replies stop, interrupted ones go on, new ones are admitted; then the slots are filled."""
        for name in [name for name in self.replies if self.model.entries[name].state != "RESERVED"]:
            del self.replies[name]
        for name, reply in [item for item in self.replies.items() if item[1].engine is None]:
            if order := self.order(reply.version):
                reply.engine = order[0]
                self.replies[name] = self.replies.pop(name)  # the last in its queue
        while len(self.replies) < ENGINES * SLOTS and self.admit():
            pass
        for name, engine in self.engines.items():
            if engine.state != "loading":
                for reply in self.first(name):
                    reply.ends = min(reply.ends, self.now + reply.left)

    def first(self, engine: str) -> list[Reply]:
        """Those with a slot, then those that come next."""
        return sorted(self.at(engine), key=lambda reply: reply.ends == NEVER)[:SLOTS]

    def admit(self) -> bool:
        name = f"e{len(self.lengths)}"
        for engine in self.order():
            drawn = self.model.may_be_drawn()[0]
            answer = self.model.reserve(name, "worker", engine, 0, drawn)
            if isinstance(answer, Reservation):
                length = self.case.lengths[len(self.lengths)]
                self.lengths[name] = length
                self.replies[name] = Reply(answer.version, length, length * TOKEN_S, engine)
                return True
        return False
