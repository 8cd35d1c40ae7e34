"""A reply that survives its engine: begun on one, continued on another or under newer weights.

    tokens ──▶ engine-0 ── 5 tokens, aborted ─┐  kept, with their log-probs
    tokens + 5 ──▶ engine-1 ── died ──────────┤  nothing came back: nothing to keep
    tokens + 5 ──▶ engine-0, version + 1 ── 9 ┴▶ one Reply of 14 tokens in 2 segments (start, length, engine, version)

No segment is older than `at_least`, the entry's V_traj. What an engine had generated when it died is lost with it,
because replies are not streamed; the turns before, and the pieces before, are not.
"""

import asyncio
from bisect import bisect_left
from collections import Counter

import numpy as np

from pipeline.trajectory import Segment
from workers.chat import Chat
from workers.engine import EngineAborted, EngineGone, Reply, WrongWeights, new_rid
from workers.routing import Routes
from workers.time_limit import TimeLimit

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0  # before an engine that gave no token is asked again


class Continuation:
    """What an episode of `entry` generates with; `engine` is the one that the entry was reserved on.

    time_limit: the episode's, which stands still while no engine can be used. counts: gets `continued` and `migrated`.
    """

    def __init__(
        self,
        entry: str,
        engine: str,
        routes: Routes,
        chat: Chat,
        stop: list[str],
        time_limit: TimeLimit,
        counts: Counter[str],
    ):
        self.entry, self.engine, self.routes = entry, engine, routes
        self.chat, self.stop, self.time_limit, self.counts = chat, stop, time_limit, counts
        self.truncated = False
        self._request = None  # (engine, rid) in flight

    def __enter__(self) -> "Continuation":
        self.routes.in_flight[self.engine] += 1
        return self

    def __exit__(self, *raised) -> None:
        self.routes.in_flight[self.engine] -= 1

    async def generate(self, tokens: list[int], max_tokens: int, at_least: int = 0, seed: int = 0) -> Reply:
        """As Engine.generate; finish_reason is "truncated" if `truncate` was called. Raises NoEngine, EngineError."""
        kept = _Kept()
        try:
            return await self._generate(kept, tokens, max_tokens, at_least, seed)
        except asyncio.CancelledError:
            if not self.truncated:
                raise
            asyncio.current_task().uncancel()
            return kept.reply("truncated")

    async def truncate(self) -> bool:
        """End the reply now, with what there is. False: no request is in flight."""
        self.truncated = True
        if self._request is None:
            return False
        engine, rid = self._request
        await engine.abort(rid)
        return True

    async def _generate(self, kept: "_Kept", tokens: list[int], max_tokens: int, at_least: int, seed: int) -> Reply:
        pause = 0.0
        while True:
            engine = await self._choose(at_least)
            self._request = engine, new_rid()
            try:
                reply = await engine.generate(
                    tokens + kept.tokens, max_tokens - len(kept.tokens), at_least, seed, self._request[1]
                )
                finish = reply.finish_reason
            except EngineAborted as aborted:
                reply, finish = aborted.partial, "abort"
                self.counts["continued"] += 1
            except (EngineGone, WrongWeights) as error:
                await self.routes.mark(engine.name, str(error))
                reply, finish = None, "abort"
                self.counts["migrated"] += 1
            finally:
                self._request = None
            if reply is not None and kept.add(reply) and (end := self._end(kept.tokens)):
                return kept.cut(end).reply("stop_string")  # the engine saw only its own part of the string
            if self.truncated:
                return kept.reply("truncated")
            if finish != "abort":
                return kept.reply(finish)
            if len(kept.tokens) >= max_tokens:
                return kept.reply("length")
            await self.routes.refresh()  # mostly the engine is about to load: sent there again, it would wait for that
            goes_on = (reply and reply.tokens) or engine.name not in self.routes.ready
            pause = 0.0 if goes_on else min(2 * pause or FIRST_PAUSE_S, LONGEST_PAUSE_S)
            await asyncio.sleep(pause)

    def _end(self, tokens: list[int]) -> int:
        """How many of the tokens it takes until a stop string is complete; 0 if none is."""

        def stopped(count: int) -> bool:
            text = self.chat.text(tokens[:count])
            return any(string in text for string in self.stop)

        return bisect_left(range(len(tokens)), True, key=stopped) if stopped(len(tokens)) else 0

    async def _choose(self, at_least: int):
        """The engine to ask next; the episode is counted there from now on."""
        if self.routes.order(self.entry, at_least, self.engine):
            engine = await self.routes.choose(self.entry, at_least, self.engine)
        else:
            with self.time_limit.standing_still():
                engine = await self.routes.choose(self.entry, at_least, self.engine)
        self.routes.in_flight[self.engine] -= 1
        self.routes.in_flight[engine.name] += 1
        self.engine = engine.name
        return engine


class _Kept:
    """The pieces of one reply."""

    def __init__(self):
        self.tokens: list[int] = []
        self.logprobs: list[np.ndarray] = []
        self.segments: list[Segment] = []

    def add(self, piece: Reply) -> bool:
        """True if there are two pieces or more."""
        start = len(self.tokens)
        self.tokens += piece.tokens
        self.logprobs.append(piece.logprobs)
        for segment in piece.segments:
            last = self.segments[-1] if self.segments else None
            if last and last[2:] == segment[2:]:
                self.segments[-1] = last._replace(length=last.length + segment.length)
            else:
                self.segments.append(segment._replace(start=start + segment.start))
        return start > 0

    def cut(self, end: int) -> "_Kept":
        """Without what follows the first `end` tokens."""
        self.tokens, self.logprobs = self.tokens[:end], [np.concatenate(self.logprobs)[:end]]
        self.segments = [s._replace(length=min(s.length, end - s.start)) for s in self.segments if s.start < end]
        return self

    def reply(self, finish_reason: str) -> Reply:
        logprobs = np.concatenate(self.logprobs) if self.logprobs else np.zeros(0, np.float32)
        return Reply(self.tokens, logprobs, finish_reason, self.segments)
