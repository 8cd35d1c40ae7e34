"""The workers' side of the model: who is admitted, where a finished entry goes, and what becomes of those who are late.

Only what chance decides is asked of the ledger: which of the prompts that may be drawn it has drawn.
"""

import math

from pipeline.coordinator import Filtered, Placed, Refused, Surplus
from pipeline.ledger_types import Reservation
from tests.pipeline.ledger_machine.places import Entry, Places


class Dispatch(Places):
    """Reserve, Occupy, Release, Renew, and the reaper."""

    def reserve(self, name: str, worker: str, engine: str, now: int, drawn: str | None) -> Reservation | Refused:
        """drawn: the prompt in the ledger's answer, if it admitted the entry."""
        known = self.entries.get(name)
        if known:
            gone = known.state in ("RELEASED", "SURPLUS", "FILTERED") or known.worker != worker
            return Refused("GONE") if gone else self._answer(known)
        version, event = self.engines.get(engine, (math.inf, 0))
        deadline = version + self.rules.max_staleness
        refusals = {
            "ENGINE": version > self.version,
            "STALE": deadline < self.head,
            "PAUSED": self.paused or self.stopped or worker in self.drained,
            "MEMORY": self.memory_full(self.rules.group_launch),
        }
        for reason, holds in refusals.items():
            if holds:
                return Refused(reason)
        if not self.admits(deadline):
            return Refused("FULL")
        if not self.idle():
            return Refused("NO_PROMPT")
        assert drawn in self.may_be_drawn(), f"drawn {drawn}, expected one of {self.may_be_drawn()}"
        prompt = self.prompts[drawn]
        prompt.state, prompt.first = "in flight", False
        self.reservations += 1
        self.entries[name] = Entry(
            name=name,
            prompt=drawn,
            worker=worker,
            version=version,
            deadline=deadline,
            event=event,
            value=self.value(drawn),
            attempt=prompt.attempts + prompt.lost + 1,
            visit=prompt.visits,
            reserved_ms=now,
            number=self.reservations,
        )
        if self.leases.get(worker, 0) < now + self._lease_ms() / 2:  # half of it is over
            self.leases[worker] = now + self._lease_ms()
        return self._answer(self.entries[name])

    def may_be_drawn(self) -> list[str]:
        idle = self.idle()
        if first := [name for name in idle if self.prompts[name].first]:
            return first
        epoch = min(self.prompts[name].epoch for name in idle)
        shuffle = self.rules.sampler == "shuffle"
        return [name for name in idle if not shuffle or self.prompts[name].epoch == epoch]

    def value(self, name: str) -> float:
        """algorithms.md 1: each outcome weighs rho to the number of events since; or 3: what it was credited with, each
        time fading what was."""
        if self.rules.evidence == "receipt":
            credits = [(retention, outcome) for prompt, retention, outcome in self.credits if prompt == name]
            kept = [math.prod(retention for retention, _ in credits[n:]) for n in range(len(credits) + 1)]
            alpha = 4 * kept[0] + sum(outcome * k for (_, outcome), k in zip(credits, kept[1:], strict=True))
            return alpha / (8 * kept[0] + sum(kept[1:]))
        seen = self.prompts[name].seen
        newest = max([event for event, _ in seen], default=0)
        rho = self.rules.rho
        alpha = rho**newest * 4 + sum(rho ** (newest - event) * outcome for event, outcome in seen)
        beta = rho**newest * 4 + sum(rho ** (newest - event) * (1 - outcome) for event, outcome in seen)
        return alpha / (alpha + beta)

    def occupy(self, name: str, outcomes: list[float]):
        entry = self.entries.get(name)
        if entry is None:
            return Refused("GONE")
        if entry.state != "RESERVED":
            if entry.placed is not None:
                return Placed(entry.placed)
            scored = {"SURPLUS": Surplus(), "FILTERED": Filtered()}.get(entry.state) if entry.scored else None
            return scored or Refused("GONE")
        place = self.place_for(entry)
        prompt = self.prompts[entry.prompt]
        prompt.seen += [(entry.event, outcome) for outcome in outcomes]
        prompt.state, prompt.attempts, prompt.lost, prompt.epoch = "idle", 0, 0, prompt.epoch + 1
        prompt.visits += 1
        self.failures = 0
        entry.scored = True
        if self.rules.filter_metric and self.rules.group_size > 1 and len(set(outcomes)) == 1:
            entry.state = "FILTERED"
            self.filtered += 1
            if self.filtered >= self.rules.max_consecutive_filtered:
                self.stop()
            self.settle()
            return Filtered()
        if place is None:
            entry.state = "SURPLUS"
            self.settle()
            return Surplus()
        self.filtered, self.finished = 0, self.finished + 1
        entry.state, entry.buffer, entry.placed, entry.finished = "OCCUPIED", place, place, self.finished
        self.settle()
        return Placed(place)

    def release(self, name: str, reason: str) -> bool:
        entry = self.entries.get(name)
        if entry is None or entry.state != "RESERVED":
            return False
        self.drop(entry, reason)
        self.settle()
        return True

    def renew(self, worker: str, names: list[str], now: int) -> tuple[set[str], set[str], bool]:
        """(cancelled, truncate, drain)"""
        self.leases[worker] = now + self._lease_ms()
        mine = {e.name: e for e in self.entries.values() if e.worker == worker}
        cancelled = {n for n in names if n not in mine or mine[n].state in ("RELEASED", "SURPLUS", "FILTERED")}
        unknown = [e for e in self.running() if e.worker == worker and e.name not in names]
        unknown = [e for e in unknown if e.reserved_ms <= now - self._lease_ms()]
        for entry in unknown:
            self.drop(entry, "lost")
        if unknown:
            self.settle()
        truncate = {n for n in names if n in mine and mine[n].state == "RESERVED" and mine[n].truncate_ms is not None}
        return cancelled, truncate, worker in self.drained

    def reap(self, now: int) -> set[str]:
        if self.restarted:
            self.restarted, self.reap_after = False, now + self._lease_ms()
        if now < self.reap_after:
            return set()
        return {e.name for e in self.expired(now) + self.proactive(now)}

    def expired(self, now: int) -> list[Entry]:
        """What dead workers held, and what took too long."""
        dead = [worker for worker, end in self.leases.items() if end < now]
        lost = [e for e in self.running() if e.worker in dead]
        for entry in lost:
            self.drop(entry, "lost")
        for worker in dead:
            del self.leases[worker]
        self.forget_workers()
        old = [e for e in self.running() if e.reserved_ms <= now - self.rules.max_age_s * 1000]
        for entry in old:
            self.drop(entry, "failed")
        if lost or old:
            self.settle()
        return lost + old

    def proactive(self, now: int) -> list[Entry]:
        """The few that keep a waiting trainer waiting: told to finish with what they have, or given back."""
        if not self.rules.proactive or self.awaited != self.head or self.ready(self.head):
            return []
        if self.admits(self.version + self.rules.max_staleness) and self.idle():
            return []
        patience = self.rules.proactive_patience_s * 1000
        remaining = min(len(self.running()), self.rules.buffer_capacity - len(self.members(self.head)))
        victims = self.running()[:remaining]
        if remaining > self.rules.proactive_threshold or any(e.reserved_ms > now - patience for e in victims):
            return []
        if self.rules.proactive == "truncate":
            told = [e for e in victims if e.truncate_ms is not None]
            for entry in victims:
                entry.truncate_ms = now if entry.truncate_ms is None else entry.truncate_ms
            victims = [e for e in told if e.truncate_ms <= now - patience]
        for entry in victims:
            self.drop(entry, "retry")
        self.settle()
        return victims

    def _answer(self, e: Entry) -> Reservation:
        payload = b"question %d" % int(e.prompt[1:])
        return Reservation(e.name, e.prompt, payload, e.version, e.deadline, e.event, e.value, e.attempt, e.visit)

    def _lease_ms(self) -> int:
        return round(self.rules.lease_s * 1000)
