import json
import subprocess
import sys

import pytest

from pipeline.errors import ConfigError
from workers.chat import Chat

USER = [{"role": "user", "content": "12 * 7 = ?"}]
TOOL = [{"role": "tool", "content": "84"}]


def template(folder, tiny_model, text):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tiny_model / name).read_bytes())
    (folder / "chat_template.jinja").write_text(text)
    return Chat(folder)


def test_growing_by_delta_equals_rendering_the_whole_conversation(chat):
    reply = chat.encode("<answer>84</answer>")
    grown = [*chat.prompt(USER), *reply, chat.end_token, *chat.extend(TOOL)]
    whole = [*USER, {"role": "assistant", "content": "<answer>84</answer>"}, *TOOL]
    assert grown == chat.prompt(whole)


def test_a_reply_is_read_back_without_its_end_token(chat):
    ids = chat.encode("<tool_call>\né  4</tool_call>")
    assert chat.text([*ids, chat.end_token]) == chat.text(ids) == "<tool_call>\né  4</tool_call>"


def test_tools_reach_the_template(chat):
    tools = [{"type": "function", "function": {"name": "python"}}]
    assert len(chat.prompt(USER, tools)) > len(chat.prompt(USER, [])) == len(chat.prompt(USER))


def test_a_template_that_leaves_tools_out_is_told_of_them_in_the_system_message(tmp_path, tiny_model):
    text = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n"
    )
    chat = template(tmp_path, tiny_model, text)
    tools = [{"type": "function", "function": {"name": "python"}}]
    alone = chat.text(chat.prompt(USER, tools))
    assert alone.startswith("<|im_start|>system\n# Tools\n")
    assert json.dumps(tools[0]) in alone
    assert '<tool_call>\n{"name": <function name>, "arguments": <JSON object>}\n</tool_call>' in alone
    beside = chat.text(chat.prompt([{"role": "system", "content": "Think."}, *USER], tools))
    assert beside.startswith("<|im_start|>system\nThink.\n\n# Tools\n")
    assert chat.prompt(USER, []) == chat.prompt(USER)


def test_a_template_that_drops_thoughts_or_closes_turns_in_its_own_way_is_continued(tmp_path, tiny_model):
    text = (
        "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n<think>\n\n</think>\n\n"
        "{{ m.content }}<|im_end|>{% else %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
        "<|im_start|>assistant"
    )
    chat = template(tmp_path, tiny_model, text)
    assert chat.extend(TOOL) == chat.encode("<|im_start|>tool 84<|im_end|><|im_start|>assistant")


def test_a_template_without_a_tool_role_sees_a_user_message(tmp_path, tiny_model):
    text = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    )
    chat = template(tmp_path, tiny_model, text)
    assert "<|im_start|>user\n<tool_response>\n84\n</tool_response><|im_end|>" in chat.text(chat.extend(TOOL))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "does not end an assistant's turn"),
        ("{% for m in messages %}<|im_start|>{{ m.role }}<|im_end|>{% endfor %}", "does not show what the assistant"),
        ("{{ raise_exception('only one turn') }}", "refuses .*only one turn"),
        ("", "has no chat template"),
    ],
)
def test_a_template_that_cannot_be_continued_is_refused_at_the_start(tmp_path, tiny_model, text, message):
    with pytest.raises(ConfigError, match=message):
        template(tmp_path, tiny_model, text)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(ConfigError, match=r"expected a folder with tokenizer\.json"):
        Chat(tmp_path)


def test_the_tokenizer_does_not_import_torch(tiny_model):
    code = f"import sys; from workers.chat import Chat; Chat({str(tiny_model)!r}); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
