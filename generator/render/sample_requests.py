"""Makes sample requests that try out a model: values for its inputs, by its task.

Reads the model's folder in the repository, and for the word that stands for a mask the tokenizer's
file beside its weights. Asks no server.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from generator.render import model_config
from generator.render.model_data import VALUES_FILE
from generator.spec.runtime_rules import (
    SAMPLE_FILES,
    SAMPLE_MASK,
    SAMPLE_TEXT,
    Value,
    sample_values,
)
from generator.spec.triton_models import ROLE_PARAMETER, TASK_PARAMETER
from generator.yaml_file.regular_file import read_json

_TYPE_STRING = 13  # inference.DataType, model_config.proto
_TYPE_BOOL = 1

# Its own default is 16 tokens, and the prompt before them.
_FOR_VLLM_BACKEND: dict[str, Value] = {
    "text_input": SAMPLE_TEXT,
    "sampling_parameters": json.dumps({"max_tokens": 64, "temperature": 0}),
    "exclude_input_in_output": True,
}


def sample_request(repository: Path, model: str, config: Any) -> dict[str, Value]:
    """A value for each input that a request to ``model`` needs, by the input's name.

    Where the task is none of ours: for each required input, or for the first where none is.
    """
    folder = repository / model
    task = model_config.parameters(config).get(TASK_PARAMETER, "")
    if model_config.parameters(config).get(ROLE_PARAMETER) == "vllm":
        return _FOR_VLLM_BACKEND
    options = _values(folder).get("options", {}) if task == "pipeline" else {}
    found = sample_values(task, str(options.get("pipeline")), config.input[0].name)
    if found is None:
        inputs = [tensor for tensor in config.input if not tensor.optional] or config.input[:1]
        return {tensor.name: _value(tensor) for tensor in inputs}
    return {name: _with_mask(value, folder) for name, value in found.items()}


def sample_chat(task: str) -> list[dict[str, Any]]:
    """Messages as OpenAI's clients send them to a model that sees or hears."""
    name, file, question = SAMPLE_FILES[task]
    part = {
        "image": {"image_url": {"url": f"data:image/png;base64,{file()}"}},
        "audio": {"input_audio": {"data": file(), "format": "wav"}},
    }[name]
    text = {"type": "text", "text": question}
    return [{"role": "user", "content": [text, {"type": next(iter(part)), **part}]}]


def _value(tensor: Any) -> Value:
    size = math.prod(max(1, size) for size in tensor.dims)
    if tensor.data_type == _TYPE_STRING:
        return SAMPLE_TEXT if size == 1 else [SAMPLE_TEXT] * size
    if tensor.data_type == _TYPE_BOOL:
        return False if size == 1 else [False] * size
    return 1 if size == 1 else [1] * size


def _values(folder: Path) -> Any:
    return json.loads((folder / VALUES_FILE).read_text(encoding="utf-8"))


def _with_mask(value: Value, folder: Path) -> Value:
    """``[MASK]`` in the tokenizer's own word for it: RoBERTa's is ``<mask>``."""
    if isinstance(value, str) and SAMPLE_MASK in value:
        return value.replace(SAMPLE_MASK, _mask_token(folder))
    return value


def _mask_token(folder: Path) -> str:
    for path in tokenizer_files(folder):
        tokens = read_json(path).get("added_tokens", [])
        for token in tokens:
            if token["content"].strip("[]<>").lower() == "mask":
                return str(token["content"])
    return SAMPLE_MASK


def tokenizer_files(folder: Path) -> list[Path]:
    """The tokenizer files beside a local model's weights, or in a model's cache."""
    values = _values(folder)
    if values.get("local"):
        path = folder / values["model"] / "tokenizer.json"
        return [path] if path.is_file() else []
    return sorted((folder / "hf_cache").glob("**/snapshots/*/tokenizer.json"))
