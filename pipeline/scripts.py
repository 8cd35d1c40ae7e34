"""The Lua transitions, as Redis runs them.

    lua/reserve.lua      #!lua                                   flags, for Redis; fakeredis does not know the line
                         -- include: _call _found _run _check    lua/_call.lua, lua/_found.lua … are put here, in order
                         -- …header, then the transition itself; an include that few calls reach may come later

    coordinator ── SCRIPT LOAD, all of them ──▶ Redis ◀── EVALSHA ── coordinator, workers, trainer
                                     NOSCRIPT: Redis started anew, and forgot them; what was never run did nothing

Whoever hears NOSCRIPT loads them all. A user that may not (docker/users.acl: of the roles only the coordinator may)
waits until the coordinator has: so no worker can run a script that is not ours.
"""

import hashlib
import re
from functools import cache
from importlib.resources import files

import redis
from redis.exceptions import NoPermissionError, NoScriptError

INCLUDE = re.compile(r"^-- include: (.*)$", re.MULTILINE)


@cache
def source(name: str, shebang: bool) -> str:
    """The text of one transition, with its includes."""
    folder = files("pipeline") / "lua"
    text = (folder / f"{name}.lua").read_text()
    text = INCLUDE.sub(lambda line: "\n".join((folder / f"{n}.lua").read_text() for n in line[1].split()), text)
    return text if shebang else re.sub(r"\A#!.*", "", text)


class Scripts:
    """Runs transitions on one Redis client."""

    def __init__(self, client: redis.Redis):
        self.client = client
        shebang = type(client).__module__.partition(".")[0] != "fakeredis"
        names = [p.name[:-4] for p in (files("pipeline") / "lua").iterdir() if re.match(r"[a-z]\w*\.lua$", p.name)]
        self.sources = {name: source(name, shebang) for name in names}
        self.sha = {name: hashlib.sha1(text.encode()).hexdigest() for name, text in self.sources.items()}

    def load(self) -> None:
        """Tell Redis all of them; those that it knows are as they were."""
        with self.client.pipeline(transaction=False) as pipe:
            for text in self.sources.values():
                pipe.script_load(text)
            pipe.execute()

    def run(self, name: str, keys: list[str], args: list) -> list:
        """The answer. Raises NoScriptError while Redis lacks them and this user may not load them."""
        try:
            return self.client.evalsha(self.sha[name], len(keys), *keys, *args)
        except NoScriptError:
            self._load_again()
            return self.client.evalsha(self.sha[name], len(keys), *keys, *args)

    def run_after(self, commands: list[tuple], name: str, keys: list[str], args: list) -> tuple[list, list]:
        """MULTI [commands; the transition] in one round trip. Returns the commands' answers, errors among them, and the
        transition's: NoScriptError, where `run` would raise it, for the commands took effect. After NOSCRIPT all is
        sent again: they must bear repetition (XADD with an explicit id)."""
        for attempt in (1, 2):
            with self.client.pipeline(transaction=True) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                pipe.execute_command("EVALSHA", self.sha[name], len(keys), *keys, *args)
                *answers, last = pipe.execute(raise_on_error=False)
            if not isinstance(last, NoScriptError) or attempt == 2:
                break
            try:
                self._load_again()
            except NoScriptError as error:
                return answers, error
        if isinstance(last, Exception):
            raise last
        return answers, last

    def _load_again(self) -> None:
        try:
            self.load()
        except NoPermissionError:
            raise NoScriptError(
                "Redis does not know headrace's scripts, as after its start, and this user may not load them: the "
                "run's coordinator does, as soon as it runs"
            ) from None
