"""What only some may know: passwords and keys come from the environment or from files, and go into no text.

    secret("REDIS_PASSWORD")     REDIS_PASSWORD itself, else what is in the file that REDIS_PASSWORD_FILE names
    masked(text)                 redis://worker:***@redis:6379/0, and *** for every secret of this process
    without_password(address)    redis://worker@redis:6379/0
    without_user(address)        redis://redis:6379/0

    REDIS_PASSWORD               of the user in REDIS_URL, unless that has it: redis://user:password@host:port/0
    HEADRACE_API_KEY             of the SGLang servers: those started here ask for it, and whoever calls one brings it

No setting of a run's file is secret: the file is copied into the run's folder, and is shown to whoever asks.
"""

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

from pipeline.errors import ConfigError

REDIS_PASSWORD, API_KEY = "REDIS_PASSWORD", "HEADRACE_API_KEY"
# user, then all up to the last @ of the host's part; or of the word, for a password whose / or ? is not percent-encoded
IN_ADDRESS = re.compile(r"(?<=://)([^\s/?#:]*):(?!\d+[/?])(?:[^\s/?#]*|(?:(?!://)\S)*)@")
USER = re.compile(r"(?<=://)[^\s/?#]*@")


def secret(name: str) -> str | None:
    """The secret called `name`; None: there is none. Raises ConfigError for a file that cannot be read or is empty."""
    if given := os.environ.get(name):
        return given
    path = os.environ.get(f"{name}_FILE")
    if not path:
        return None
    try:
        found = Path(path).read_text().strip()
    except OSError as error:
        raise ConfigError(f"{name}_FILE = {path!r} cannot be read ({error.strerror}): expected a file") from None
    if not found:
        raise ConfigError(f"{name}_FILE = {path!r} is empty: expected a secret in it")
    return found


def authorization() -> dict[str, str]:
    """The header that brings a server of SGLang its key; none, if there is none."""
    key = secret(API_KEY)
    return {"Authorization": f"Bearer {key}"} if key else {}


def without_password(address: str) -> str:
    """`address`, with its user alone."""
    return IN_ADDRESS.sub(lambda found: f"{found[1]}@" if found[1] else "", address)


def without_user(address: str) -> str:
    """`address` as anybody could write it: with no user and no password, in its query neither."""
    address, _, query = address.partition("?")
    kept = "&".join(part for part in query.split("&") if _name(part) not in ("username", "password"))
    return USER.sub("", address) + (f"?{kept}" if kept else "")


def password_in_query(address: str) -> str | None:
    """The name of a password in the query of `address`, which would be shown; None: there is none."""
    names = map(_name, address.partition("?")[2].split("&"))
    return next((name for name in names if name.endswith("password")), None)


def masked(value: Any) -> Any:
    """`value`, a text or what JSON has, with *** in the place of each password and key that this process knows of.

    Whatever else is in it becomes its text.
    """
    return _masked(value, _known())


def _masked(value: Any, known: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _masked(item, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, known) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    text = IN_ADDRESS.sub(r"\1:***@", str(value))
    for secret in known:
        text = text.replace(secret, "***")
    return text


def _known() -> list[str]:
    """Each secret as it is, and as others quote it in what they say."""
    found = set()
    for name in (REDIS_PASSWORD, API_KEY):
        # a file that cannot be read holds nothing to mask; that it cannot is an error of those who need it
        with contextlib.suppress(ConfigError):
            if value := secret(name):
                found |= {value, repr(value)[1:-1], json.dumps(value)[1:-1]}
    return sorted(found, key=len, reverse=True)


def _name(part: str) -> str:
    return unquote_plus(part.partition("=")[0])
