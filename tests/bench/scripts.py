"""Server CPU of Reserve and Occupy, in units of the cheapest script there is: an unpipelined EVALSHA of `return 1`.

    nothing │ trivial │ reserve │ occupy │ nothing │ trivial │ …   blocks of 32 unpipelined calls, alternating, so that
       └── a reading of the counter costs this much                noise hits all alike; a round is 40 of each

The payload is excluded by sending it before: Occupy finds its XADDs done, as it does inside their MULTI, and is sent
alone, as one unpipelined EVALSHA like the other two. That script's own keys, arguments and answer are part of its cost.
`10 idle prompts` means 10 when a block is in flight, and 42 between blocks.
"""

import statistics
from collections.abc import Sequence

from tests.bench.result import ROUNDS, Result, ratio
from tests.bench.server import Server
from tests.bench.steady_run import BLOCK, Call, SteadyRun

BLOCKS = 40  # of each kind in one round
TARGET, SPREAD = 2.5, 1.2


def measure(server: Server) -> list[Result]:
    sha = server.client.script_load("return 1")
    return [
        *_against_trivial(server, sha),
        *_against(server, sha, "B = 4,096 against 64", {"batch_size": 4096}, {"batch_size": 64}),
        *_against(server, sha, "100,000 against 10 idle prompts", {"idle": 100_000}, {"idle": 10}),
        *_against(server, sha, "η = 4 against 1 (for information)", {"max_staleness": 4}, {}, bounded=False),
    ]


def _against_trivial(server: Server, sha: str) -> list[Result]:
    """B = 64, η = 1, 5,000 idle prompts; with the append-only file as the product has it, and without."""
    results = []
    for append_only in ("yes", "no"):
        server.client.config_set("appendonly", append_only)
        run = SteadyRun(server.client, batch_size=64)
        rounds = [_round(server, sha, [run])[0] for _ in range(ROUNDS)]
        name = f"append-only file {'on' if append_only == 'yes' else 'off'}"
        for kind in ("reserve", "occupy"):
            found = [r[kind] / r["trivial"] for r in rounds]
            results.append(ratio(f"{kind.title()} / trivial EVALSHA, {name}", found, below=TARGET))
        us = {kind: statistics.median(r[kind] for r in rounds) for kind in ("trivial", "reserve", "occupy")}
        results.append(Result(f"CPU µs a call, {name}", ", ".join(f"{kind} {cost:.0f}" for kind, cost in us.items())))
    server.client.config_set("appendonly", "yes")
    return results


def _against(server: Server, sha: str, name: str, large: dict, small: dict, bounded: bool = True) -> list[Result]:
    """Two runs side by side, block by block; the ratio of what each call cost."""
    runs = [SteadyRun(server.client, **{"batch_size": 64} | settings) for settings in (large, small)]
    rounds = [_round(server, sha, runs) for _ in range(ROUNDS)]
    return [
        ratio(f"{kind.title()}, {name}", [a[kind] / b[kind] for a, b in rounds], below=SPREAD if bounded else None)
        for kind in ("reserve", "occupy")
    ]


def _round(server: Server, sha: str, runs: Sequence[SteadyRun]) -> list[dict[str, float]]:
    """CPU in µs per call of each kind, for each run."""
    trivial = [Call([], sha, [], [])] * BLOCK
    meters = [{kind: _Meter(server) for kind in ("nothing", "trivial", "reserve", "occupy")} for _ in runs]
    for _ in range(BLOCKS):
        for run, meter in zip(runs, meters, strict=True):
            meter["nothing"].send([])
            meter["trivial"].send(trivial)
            run.reserve(meter["reserve"].send)
            run.occupy(meter["occupy"].send)
    calls = BLOCKS * BLOCK
    return [{kind: (m.us - meter["nothing"].us) / calls for kind, m in meter.items()} for meter in meters]


class _Meter:
    """Adds up what its calls cost the server; each reading of the counter costs something too: see `nothing`."""

    def __init__(self, server: Server):
        self.server, self.us = server, 0.0

    def send(self, calls: list[Call]) -> list:
        before = self.server.cpu_us()
        answers = [self.server.client.evalsha(call.sha, len(call.keys), *call.keys, *call.args) for call in calls]
        self.us += self.server.cpu_us() - before
        return answers
