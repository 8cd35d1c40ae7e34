"""The model and tokenizer made on the spot."""

import hashlib
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.config_sections import TinyModel
from trainer import tiny

QUESTIONS = ["12 + 7 - 31 = ?", "Solve 3 * 14. Give only the result.", "Größe? 你好"]
CALL = '<tool_call>\n{"name": "python", "arguments": {"code": "print(12 * 7)"}}\n</tool_call>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tiny.make(folder, TinyModel(hidden=32, heads=2), QUESTIONS, seed=1, context=4096)
    return folder


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_same_arguments_give_the_same_bytes(folder, tmp_path):
    tiny.make(tmp_path / "again", TinyModel(hidden=32, heads=2), QUESTIONS, seed=1, context=4096)
    assert digests(tmp_path / "again") == digests(folder)
    tiny.make(tmp_path / "other", TinyModel(hidden=32, heads=2), QUESTIONS, seed=2, context=4096)
    differing = {name for name, digest in digests(tmp_path / "other").items() if digest != digests(folder)[name]}
    assert differing == {"model.safetensors"}


@pytest.mark.parametrize("words", [False, True])
@given(text=st.text())
def test_any_text_survives_the_tokenizer(words, text):
    tokenizer = tiny.make_tokenizer(QUESTIONS, 384, words)
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_digits_and_operators_are_single_tokens_and_boilerplate_is_few(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in ("1234567890", "1-2+3*4=5/6%7"):
        assert len(tokenizer.encode(text)) == len(text)
    assert len(tokenizer.encode(CALL)) <= 4 + len("12 * 7")
    assert len(tokenizer.encode("<answer>84</answer>")) == 4
    for mark in (*tiny.MARKS, tiny.TURN_START, tiny.TURN_END):
        assert len(tokenizer.encode(mark)) == 1
    assert tokenizer.decode(tokenizer.encode(CALL), skip_special_tokens=True) == CALL


def test_with_words_a_word_is_one_token_wherever_it_stands():
    tokenizer = tiny.make_tokenizer(["You see a toilet 1, and a sinkbasin 2.", "put some soap in toilet."], 512, True)
    said = tokenizer.encode("put a toilet 12 on toilet, and a sinkbasin 2 in toilet.").tokens
    assert said.count("Ġtoilet") == 3 and "Ġsinkbasin" in said
    assert [token for token in said if any(c.isdigit() for c in token)] == ["Ġ1", "2", "Ġ2"]


def test_a_chat_grows_only_at_its_end(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [
        {"role": "user", "content": "12 * 7 = ?"},
        {"role": "assistant", "content": CALL},
        {"role": "tool", "content": "84"},
        {"role": "assistant", "content": "<answer>84</answer>"},
    ]
    texts = [
        tokenizer.apply_chat_template(messages[:n], add_generation_prompt=n % 2 == 1, tokenize=False)
        for n in range(1, 5)
    ]
    assert texts[0] == "<|im_start|>user\n12 * 7 = ?<|im_end|>\n<|im_start|>assistant\n"
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert "<|im_start|>tool\n84<|im_end|>\n" in texts[2]
    structured = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "python", "arguments": {"code": "print(12 * 7)"}}}],
    }
    called = tokenizer.apply_chat_template([messages[0], structured], tokenize=False)
    assert re.sub(r"\s", "", called) == re.sub(r"\s", "", texts[1])
    tools = [{"type": "function", "function": {"name": "python"}}]
    listed = tokenizer.apply_chat_template(messages[:1], tools=tools, tokenize=False)
    assert listed.startswith("<|im_start|>system\nTools: python<|im_end|>\n")


def test_transformers_loads_it_with_tied_embeddings(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.config.eos_token_id == AutoTokenizer.from_pretrained(folder).eos_token_id
    assert model.config.architectures == ["Qwen3ForCausalLM"]


def test_an_existing_folder_is_left_alone(folder):
    before = digests(folder)
    tiny.make(folder, TinyModel(layers=5), ["other"], seed=9, context=4096)
    assert digests(folder) == before
