"""How much of its memory Redis has used; a managed one, and fakeredis, do not tell and count as roomy.

byte_budget < maxmemory        asked at create: what is admitted must fit
used_memory > maxmemory        full: plain writes and Reserve are refused, every other transition goes on
"""

import redis


def maxmemory(client: redis.Redis) -> int:
    """Bytes; 0: no limit, or none that is told."""
    return int(_info(client).get("maxmemory", 0))


def is_full(client: redis.Redis) -> bool:
    """Whether Reserve is refused for the server's sake."""
    info = _info(client)
    return 0 < int(info.get("maxmemory", 0)) < int(info.get("used_memory", 0))


def _info(client: redis.Redis) -> dict:
    try:
        return client.info("memory")
    except redis.ResponseError:
        return {}
