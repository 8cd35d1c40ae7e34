"""A model that is one GGUF file, as llama.cpp serves it, becomes a Hugging Face folder.

    model.gguf = "package:file.gguf" ──▶ weights dequantized ────────────────┬─▶ {run folder}/model/
                                         tokenizer, chat template inside it ─┘

What is trained is the dequantized model: full precision from here on, with the rounding that quantization once did to
it. transformers reads the file, for every architecture that it knows in this form.
"""

import os
import shutil
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

from trainer.model import DTYPES, ModelError
from trainer.tiny import write_model

# transformers splits text for every byte-level BPE in GGUF as GPT-2 does; this model was trained with single digits
SPLITS = {"smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]}
PAD = "<|endoftext|>"


def make(folder: Path, file: Path, dtype: str) -> None:
    """Write a model folder that transformers and SGLang load, with weights of `dtype`: "float32" or "bfloat16".

    The folder appears whole or not at all. An existing one is left alone. Raises ModelError for a file that
    transformers cannot read.
    """
    if folder.exists():
        return
    logging.disable_progress_bar()
    try:
        tokenizer, model = read_tokenizer(file), read_model(file)
    except Exception as error:  # transformers and gguf raise whatever a broken file leads to
        raise ModelError(
            f"{file} cannot be read ({type(error).__name__}: {error}); copy it again, or set model.path to a Hugging "
            "Face folder instead"
        ) from error
    model.config.pad_token_id, model.config.dtype = tokenizer.pad_token_id, dtype
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}-{os.getpid()}")
    partial.mkdir()
    try:
        tokenizer.save_pretrained(partial)
        write_model(model.to(DTYPES[dtype]), partial)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_model(file: Path):
    """The model of a GGUF file, dequantized to float32; nothing of it remembers that it was quantized."""
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, local_files_only=True
    )
    config = model.config
    del config.quantization_config
    config.architectures = [type(model).__name__]
    return model


def read_tokenizer(file: Path) -> PreTrainedTokenizerFast:
    """The tokenizer and chat template of a GGUF file. Padding is no end of a turn, even where the file says so."""
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    if steps := SPLITS.get(_split(file)):
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if PAD in tokenizer.get_vocab():
        tokenizer.pad_token = PAD
    return tokenizer


def _split(file: Path) -> str:
    """How the file says that text is split before the merges: `tokenizer.ggml.pre`."""
    from gguf import GGUFReader  # an extra

    field = GGUFReader(file).fields.get("tokenizer.ggml.pre")
    return field.contents() if field else ""
