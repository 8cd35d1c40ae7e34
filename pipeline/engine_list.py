"""Which engines a run has: those that the coordinator process was given, and what a person has changed since.

    [engines] or --engine URL …    engine-0, engine-1, …  ─┐
    headrace engines add URL       HOST:PORT = URL        ─┴─▶ wanted() ─▶ EngineFleet, at its next pass
    headrace engines remove NAME   NAME = ""

The changes are kept in hr:{run}:engine_changes, so that a coordinator that is started again knows them. A new
`headrace up` begins with what its settings say.
"""

from collections.abc import Sequence
from urllib.parse import urlsplit

from redis import Redis

from pipeline import keys
from pipeline.errors import ConfigError


def wanted(client: Redis, run: str, given: Sequence[str]) -> dict[str, str]:
    """name -> URL; given: URLs of engine-0, engine-1, …"""
    found = {f"engine-{number}": url.rstrip("/") for number, url in enumerate(given)}
    found |= {name.decode(): url.decode() for name, url in client.hgetall(keys.engine_changes(run)).items()}
    return {name: url for name, url in found.items() if url}


def add(client: Redis, run: str, url: str) -> tuple[str, str]:
    """Its name, HOST:PORT, and its URL. Raises ConfigError for what is no address."""
    parts = urlsplit(url)
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port
    except ValueError:  # of a port
        usable = False
    if not usable or parts.path.strip("/") or parts.query or parts.username:
        raise ConfigError(f"expected the address of an SGLang server such as http://10.0.0.7:30000, found {url!r}")
    url = f"{parts.scheme}://{parts.netloc}"
    client.hset(keys.engine_changes(run), parts.netloc, url)
    return parts.netloc, url


def remove(client: Redis, run: str, name: str) -> None:
    client.hset(keys.engine_changes(run), name, "")


def forget(client: Redis, run: str) -> None:
    """Only what is given counts again."""
    client.delete(keys.engine_changes(run))
