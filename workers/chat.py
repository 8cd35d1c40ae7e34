"""Conversations as token ids that only ever grow: nothing that exists is tokenized again.

    first prompt      template(messages) → ids                        <|im_start|>user … <|im_start|>assistant
    reply             the engine's own ids, with the end token                                    4 2 <|im_end|>
    later messages    the template's text after a reply's end token → ids   \n<|im_start|>tool … <|im_start|>assistant

The later text comes from a dummy conversation, [user, assistant, *messages], cut after the assistant's end token. So
the prompt of turn k + 1 begins with exactly the tokens of turn k, and log-probs stay those of the tokens sampled.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError

REPLY = "headrace-reply"  # stands for the assistant's words in the dummy conversation
DUMMY = [{"role": "user", "content": "x"}, {"role": "assistant", "content": REPLY}]
TOOLS = """# Tools

You may call these functions:
<tools>
{}
</tools>

To call one, write a JSON object with its name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <function name>, "arguments": <JSON object>}}
</tool_call>"""

Messages = list[dict[str, Any]]


class Chat:
    """The tokenizer and chat template of a model folder.

    end_token: id that ends an assistant's turn in the template; a reply that was cut short gets it appended.
    Raises ConfigError for a folder without tokenizer or template, and for a template that cannot be continued.
    """

    def __init__(self, folder: Path | str):
        # Not AutoTokenizer: it imports torch, which takes 2 s and 300 MB. tokenizer.json holds all there is to know.
        from transformers import PreTrainedTokenizerFast
        from transformers.utils.chat_template_utils import render_jinja_template

        self.folder, self._render_template = folder, render_jinja_template
        try:
            self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"model {folder}: expected a folder with tokenizer.json, found: {error}") from None
        self._backend = self.tokenizer.backend_tokenizer  # without what transformers does around it: half the time
        if not self.tokenizer.chat_template:
            raise ConfigError(f"model {folder}: its tokenizer has no chat template; add chat_template.jinja")
        self._special = self.tokenizer.special_tokens_map
        after = self.encode(self._after_reply([{"role": "user", "content": "x"}]))
        special = self.tokenizer.all_special_ids + list(self.tokenizer.added_tokens_decoder)
        if not after or after[0] not in special:
            raise ConfigError(
                f"model {folder}: its chat template does not end an assistant's turn with a special token, so replies "
                "cannot be continued without tokenizing them again; use a template that does (ChatML, Llama 3, …)"
            )
        self.end_token: int = after[0]
        self.end_text: str = self.tokenizer.decode([self.end_token], skip_special_tokens=False)
        self.tool_role = self._knows_tool_role()

    def prompt(self, messages: Messages, tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Token ids of a conversation up to where the assistant speaks."""
        if tools and not self.shows_tools:
            messages = _with_tools(messages, tools)
        return self.encode(self._render(messages, tools=list(tools) or None))

    def extend(self, messages: Messages) -> list[int]:
        """Token ids of what follows an assistant's end token: `messages`, then the beginning of the next reply."""
        if not self.tool_role:
            messages = [_as_user(message) for message in messages]
        after = self._after_reply(messages)
        return self.encode(after[len(self.end_text) :])

    def text(self, reply: list[int]) -> str:
        """A reply's words: its ids without the end token."""
        words = reply[:-1] if reply and reply[-1] == self.end_token else reply
        return self._backend.decode(words, skip_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, special tokens in it included, nothing added."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def _render(self, messages: Messages, **options: Any) -> str:
        # What apply_chat_template comes to, without what it looks up and copies for each message: half the time
        template = self.tokenizer.get_chat_template(tools=options.get("tools"))
        names = self._special | options
        (text,), _ = self._render_template([messages], chat_template=template, add_generation_prompt=True, **names)
        return text

    def _after_reply(self, messages: Messages) -> str:
        try:
            _, found, after = self._render(DUMMY + messages).partition(REPLY)
        except Exception as error:  # a template raises whatever it likes, mostly jinja2's TemplateError
            raise ConfigError(f"model {self.folder}: its chat template refuses {messages}: {error}") from None
        if not found:
            raise ConfigError(f"model {self.folder}: its chat template does not show what the assistant said")
        return after

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the template tells the model of tools; asked of it only where there are any."""
        function = {"name": REPLY, "description": "", "parameters": {"type": "object", "properties": {}}}
        return REPLY in self._render(DUMMY[:1], tools=[{"type": "function", "function": function}])

    def _knows_tool_role(self) -> bool:
        try:
            return REPLY in self._after_reply([{"role": "tool", "content": REPLY}])
        except ConfigError:
            return False


def _as_user(message: dict[str, Any]) -> dict[str, Any]:
    """A tool's answer for templates without that role, written as Qwen's own template writes it."""
    if message["role"] != "tool":
        return message
    return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}


def _with_tools(messages: Messages, tools: Sequence[dict[str, Any]]) -> Messages:
    """The tools as a system message, for templates that leave them out, in the words of Qwen's own template."""
    described = TOOLS.format("\n".join(json.dumps(tool) for tool in tools))
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": described}, *messages]
    return [messages[0] | {"content": f"{messages[0]['content']}\n\n{described}"}, *messages[1:]]
