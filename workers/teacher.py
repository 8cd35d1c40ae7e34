"""The teacher of a cold start as an episode sees it: SGLang servers that serve no weights of the run.

    Chat of the run's model ─▶ token ids ─▶ teacher ─▶ token ids, which the run's model is trained on as they are

So both must have one tokenizer; the chat template is always that of the run's model, which shall learn to speak in it.
"""

from collections.abc import Sequence
from typing import Any

import aiohttp
import orjson

from pipeline import config
from pipeline.engines import UNAUTHORIZED, wrong_key
from pipeline.errors import ConfigError
from workers.chat import Chat
from workers.engine import Engine, sampling

TOKENIZE_S = 30
CODE = '\n{"name": "python", "arguments": {"code": "for i in range(10):\\n    print(1234 * i)"}}\n$\\frac{1}{2}$ … π'


class Teacher(Engine):
    """Whatever its weights are called: they write traces, and count for no version."""

    def __init__(self, url: str, http: aiohttp.ClientSession, settings: config.Config, chat: Chat):
        super().__init__(url, url, http, decoding(settings, chat), _never, settings.rollout.request_timeout_s)

    async def _version(self, text: str | None, at_least: int) -> int:
        return at_least

    async def check_tokenizer(self, chat: Chat, texts: Sequence[str]) -> None:
        """Raises ConfigError if the server cannot be asked, or reads text as other ids than `chat` does."""
        text = "".join(map(str, chat.tokenizer.added_tokens_decoder.values())) + CODE + "\n".join(texts)
        request = orjson.dumps({"prompt": text, "add_special_tokens": False})
        try:
            timeout = aiohttp.ClientTimeout(total=TOKENIZE_S)
            async with self._http.post(f"{self.url}/tokenize", data=request, timeout=timeout) as response:
                said = await response.read()
                if response.status == UNAUTHORIZED:
                    raise ConfigError(f"cold_start.teacher: {wrong_key(self.url)}")
            theirs = orjson.loads(said)["tokens"]
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"cold_start.teacher: expected an SGLang server at {self.url} that tokenizes, found {error!r}; start "
                "it, or mend the address"
            ) from None
        ours = chat.encode(text)
        if theirs != ours:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
            raise ConfigError(
                f"cold_start.teacher: the server at {self.url} has another tokenizer than the model in {chat.folder}: "
                f"{chat.tokenizer.decode(ours[at : at + 3])!r} is {theirs[at : at + 3]} there, {ours[at : at + 3]} "
                "here. Traces are trained on token by token: take a teacher of the model's own family"
            )


def decoding(settings: config.Config, chat: Chat) -> dict[str, Any]:
    """SGLang's sampling parameters: the run's ends of a reply, the teacher's own temperature, top_p and top_k."""
    teacher = settings.cold_start
    own = {"temperature": teacher.temperature, "top_p": teacher.top_p, "top_k": teacher.top_k}
    return sampling(settings.rollout, chat.end_token) | own


async def _never(label: Any) -> bool:
    return False
