"""Is the model that a server runs the run's own? Asked before it is given weights: those of another end its scheduler.

server   GET /model_info ─▶ architectures, model_path ─▶ its config.json, where that folder can be read from here
run      the config.json of the published weights      ─▶ difference(): a sentence, "" if there is none
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.model_folder import text_config

SHAPE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)


def difference(info: Mapping[str, Any], folder: Path) -> str:
    """info: what /model_info answered. folder: of the weights to be loaded. What neither side tells is not compared."""
    ours, path = _config(folder), info.get("model_path")
    theirs = (_config(Path(path)) if path else {}) | {"architectures": info.get("architectures")}
    for name in ("architectures", *SHAPE):
        found, expected = theirs.get(name), ours.get(name)
        if found is not None and expected is not None and found != expected:
            return f"{name} is {_shown(found)}, in the run's {_shown(expected)}"
    return ""


def _config(folder: Path) -> dict[str, Any]:
    """{} where there is none to be read: a model hub's name, or another host's folder. A model of images as well has
    its shape in the part for text."""
    try:
        found = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return found | text_config(found) | {"architectures": found.get("architectures")} if isinstance(found, dict) else {}


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
