"""A Qwen3-style model and its tokenizer, made on the spot: 0.3 M parameters that a CPU core can train and serve.

    texts of the run ──BPE──▶ tokenizer (256 bytes + special tokens + merges)   ┐
    [model.tiny]     ──Qwen3Config, random weights────────────────────────────▶ ┴─▶ {run folder}/model/

Digits and operators are always single tokens, so the model can learn arithmetic; everything that never varies
(`{"name": "python", "arguments": {"code": "print(`) becomes very few, so an episode stays short.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen3Config, Qwen3ForCausalLM

from pipeline.config_sections import TinyModel

END, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")  # ordinary text, but one token each

# One rendering of everything a math episode writes around its numbers; the merges are learned from it.
FORMAT = (
    "system\nTools: python",
    "user\n",
    "assistant\n",
    "tool\n",
    '\n{"name": "python", "arguments": {"code": "print(',
    ')"}}\n',
    "<answer>",
    "</answer>",
)
# What no token goes beyond: a word or a digit with the space before it; or digits and operators, which stay single.
WORDS = r" ?\p{L}+| ?\p{N}|\s+|."
ARITHMETIC = [
    pre_tokenizers.Digits(individual_digits=True),
    pre_tokenizers.Split(Regex(r"[-+*=%]|(?<!<)/"), behavior="isolated"),
]

CHAT_TEMPLATE = r"""
{%- if tools %}
    {{- "<|im_start|>system\nTools:" }}
    {%- for tool in tools %}{{- " " + (tool.function or tool).name }}{% endfor %}
    {{- "<|im_end|>\n" }}
{%- endif %}
{%- for message in messages %}
    {{- "<|im_start|>" + message.role + "\n" + (message.content or "") }}
    {%- for call in message.tool_calls or [] %}
        {%- set call = call.function or call %}
        {{- '<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
        {{- (call.arguments | tojson) + "}\n</tool_call>" }}
    {%- endfor %}
    {{- "<|im_end|>\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\n" }}{% endif %}
"""


def make(folder: Path, settings: TinyModel, texts: Iterable[str], seed: int, context: int) -> None:
    """Write a model folder that transformers and SGLang load; the same arguments give the same bytes.

    settings  the run's [model.tiny]: layers, hidden width, heads, vocabulary, words
    texts     what the tokenizer should be good at, the problems' questions first of all
    context   the longest sequence the model will see, in tokens

    The folder appears whole or not at all. An existing one is left alone.
    """
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}-{os.getpid()}")
    partial.mkdir()
    try:
        tokenizer = make_tokenizer(texts, settings.vocabulary, settings.words)
        write_tokenizer(tokenizer, partial, context)
        write_model(make_model(tokenizer, settings, seed, context), partial)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def make_tokenizer(texts: Iterable[str], vocabulary: int, words: bool = False) -> Tokenizer:
    """A byte-level BPE of at most `vocabulary` tokens; reads any text, compresses `texts` and FORMAT."""
    tokenizer = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(WORDS), behavior="isolated")] if words else ARITHMETIC
    bytes_of_them = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_of_them])
    tokenizer.decoder = decoders.ByteLevel()
    special = [END, TURN_START, TURN_END]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(MARKS),
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    questions = [piece for text in texts for piece in re.split(r"(?<=[.?!:])\s", text)]
    # The format is repeated so that no question outweighs it: generated tokens cost more than prompt tokens.
    tokenizer.train_from_iterator([*questions, *list(FORMAT) * (2 * len(questions) + 2)], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return tokenizer


def make_model(tokenizer: Tokenizer, settings: TinyModel, seed: int, context: int) -> Qwen3ForCausalLM:
    """Random float32 weights of the shape `settings` asks for, input and output embeddings tied."""
    config = Qwen3Config(
        vocab_size=settings.vocabulary,
        hidden_size=settings.hidden,
        intermediate_size=2 * settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        head_dim=settings.hidden // settings.heads,
        max_position_embeddings=context,
        # Wide initial weights and fast rotations: such a small model learns to copy in half the steps.
        initializer_range=0.05,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(TURN_END),
        pad_token_id=tokenizer.token_to_id(END),
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.config.architectures = [type(model).__name__]
    return model


def write_model(model: Qwen3ForCausalLM, folder: Path) -> None:
    """config.json and model.safetensors; tied weights are written once."""
    model.config.save_pretrained(folder)
    save_file(dict(model.named_parameters()), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it private; engines may run as another user


def write_tokenizer(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """tokenizer.json, its configuration and chat_template.jinja, readable by every transformers 5."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE.lstrip("\n"))
