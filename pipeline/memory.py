"""How much of its memory Redis has used; a managed one, and fakeredis, do not tell and count as roomy.

byte_budget < maxmemory        asked at create: what is admitted must fit
used_memory > maxmemory        full: plain writes and Reserve are refused, every other transition goes on
"""

import redis


def usage(client: redis.Redis) -> tuple[int, int]:
    """Bytes used, and maxmemory; 0: no limit, or nothing that is told."""
    try:
        info = client.info("memory")
    except redis.ResponseError:
        return 0, 0
    return int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))


def maxmemory(client: redis.Redis) -> int:
    """Bytes; 0: no limit, or none that is told."""
    return usage(client)[1]


def is_full(client: redis.Redis) -> bool:
    """Whether Reserve is refused for the server's sake."""
    used, limit = usage(client)
    return 0 < limit < used
