"""Rules of all that is around them: engines, the reaper, gates, clocks, the network, and Redis itself."""

import copy

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from pipeline import keys
from tests.pipeline.ledger_machine.base import Machine, either, engine, worker


class Surroundings(Machine):
    """What happens around workers and trainers."""

    @rule(i=either, e=engine, older=st.sampled_from([0, 0, 0, 1, -1]))
    def load(self, i, e, older):
        """The newest weights, the ones before them, or ones that the ledger has lost."""
        name, version = f"e{e}", max(self.model.version - older * self.model.rules.publish_every, 0)
        self.command(i, lambda c: c.register_engine(name, version), lambda: self.model.load(name, version))

    @rule(i=either, e=engine, removed=st.booleans())
    def engine_fails(self, i, e, removed):
        name = f"e{e}"

        def send(c):
            return c.remove_engine(name) if removed else c.mark_engine(name, "failed", "it restarted")

        self.command(i, send, lambda: self.model.engines.pop(name, None) and None)

    @rule(ms=st.sampled_from([1, 4_000, 11_000, 16_000, 16_000, 40_000, -1, -7_000, -600_000]))
    def time_passes(self, ms):
        self.d.ms = max(self.d.ms + ms, 0)

    @rule(i=either, ms=st.sampled_from([0, 0, 11_000]))
    def reap(self, i, ms):
        self.d.ms += ms

        def model(_):
            return self.model.reap(self.d.ms)

        self.call(i, lambda c: set(c.reap()), model, model, unchanged=False)

    @rule(i=either, what=st.sampled_from(["pause", "stop", "drain", "resume", "resume"]), w=worker)
    def gate(self, i, what, w):
        name = self.workers[w]
        calls = {
            "pause": (lambda c: c.pause(), self.model.pause),
            "stop": (lambda c: c.stop("by hand"), self.model.stop),
            "resume": (lambda c: c.resume(), self.model.resume),
            "drain": (lambda c: c.drain(name), lambda: self.model.drain(name, self.d.ms)),
        }
        self.command(i, *calls[what])

    @rule(i=either, fault=st.sampled_from(["lost", "twice"]))
    def next_call_goes_wrong(self, i, fault):
        """Its reply is lost and the caller sends again; or the same bytes arrive twice."""
        self.clients[i]._ledger.scripts.fault = fault

    @rule()
    def scripts_are_flushed(self):
        self.client.script_flush()

    @rule()
    def redis_restarts(self):
        self.client.hset(keys.run(self.run), "redis_run_id", "another process")
        self.model.restarted, self.contents = True, None

    @rule()
    def snapshot(self):
        """What Redis has on disk."""
        names = list(self.client.scan_iter(f"{keys.run(self.run)}*", count=1000))
        with self.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.dump(name)
                pipe.pttl(name)
            found = pipe.execute()
        self.on_disk = list(zip(names, found[::2], found[1::2], strict=True)), copy.deepcopy(self.model)

    @precondition(lambda self: self.on_disk)
    @rule()
    def redis_loses_its_last_writes(self):
        rows, self.model = self.on_disk
        self.client.delete(*self.client.scan_iter(f"{keys.run(self.run)}*", count=1000))
        with self.client.pipeline(transaction=False) as pipe:
            for name, dump, ttl in rows:
                pipe.restore(name, max(ttl, 0), dump)
            pipe.execute()
        self.on_disk, self.before, self.contents = None, (0, 0, 0), None
        for i in range(2):  # who saw more says so
            self.peek(i, 0)
            self.reserve(i, 0, 0, 1)
