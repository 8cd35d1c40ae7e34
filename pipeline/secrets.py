"""What only some may know: passwords and keys come from the environment or from files, and go into no text.

    secret("REDIS_PASSWORD")     REDIS_PASSWORD itself, else what is in the file that REDIS_PASSWORD_FILE names
    masked(text)                 redis://worker:***@redis:6379/0, and *** for every secret of this process

    REDIS_PASSWORD               of the user in REDIS_URL, unless that has it: redis://user:password@host:port/0
    HEADRACE_API_KEY             of the SGLang servers: those started here ask for it, and whoever calls one brings it

No setting of a run's file is secret: the file is copied into the run's folder, and is shown to whoever asks.
"""

import contextlib
import os
import re
from pathlib import Path

from pipeline.errors import ConfigError

REDIS_PASSWORD, API_KEY = "REDIS_PASSWORD", "HEADRACE_API_KEY"
IN_ADDRESS = re.compile(r"(?<=://)([^\s/@:]*):[^\s/@]+@")


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


def without_password(url: str) -> str:
    """`url`, with its user alone."""
    return IN_ADDRESS.sub(lambda found: f"{found[1]}@" if found[1] else "", url)


def masked(text: str) -> str:
    """`text` with *** in the place of each password and key that this process knows of."""
    text = IN_ADDRESS.sub(r"\1:***@", text)
    for name in (REDIS_PASSWORD, API_KEY):
        # a file that cannot be read holds nothing to mask; that it cannot is an error of those who need it
        with contextlib.suppress(ConfigError):
            if found := secret(name):
                text = text.replace(found, "***")
    return text
