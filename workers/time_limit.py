"""A time limit that stands still while nothing can be done about it.

started ──────┬─ standing_still() ─┬──────▶ TimeoutError, limit_s after the start without what is in between
              └─ no engine ────────┘
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class TimeLimit:
    """limit_s of one task's own time. Entered once."""

    def __init__(self, limit_s: float):
        self._timeout = asyncio.timeout(limit_s)

    async def __aenter__(self) -> "TimeLimit":
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, *raised) -> bool | None:
        return await self._timeout.__aexit__(*raised)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        left = self._timeout.when() - loop.time()
        self._timeout.reschedule(None)
        try:
            yield
        finally:
            self._timeout.reschedule(loop.time() + left)
