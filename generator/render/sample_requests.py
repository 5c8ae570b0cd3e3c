"""Sample requests that try out a model, by its task: values for its inputs, and curl lines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from generator.render import model_config
from generator.render.manifest import WEIGHTS_FOLDER
from generator.render.model_data import newest_json
from generator.spec.task_sets import (
    CLASSIFIER_TASKS,
    COMPLETION_TASKS,
    EMBEDDING_TASKS,
    MEDIA_TASKS,
)
from generator.spec.triton_models import ENGINE_PARAMETER, TASK_PARAMETER
from hf_triton.runtime.regular_file import read_json
from hf_triton.runtime.request.sample_values import SAMPLE_MASK, SAMPLE_TEXT, Value, sample_values


def sample_request(repository: Path, model: str, config: Any) -> dict[str, Value]:
    folder = repository / model
    task = model_config.parameters(config).get(TASK_PARAMETER, "")
    options = _values(folder).get("options", {}) if task == "pipeline" else {}
    values: dict[str, Value] = {}
    found = sample_values(task, str(options.get("pipeline")), config.input[0].name)
    if found is None:
        inputs = [tensor for tensor in config.input if not tensor.optional] or config.input[:1]
        usual: dict[str, Any] = {"TYPE_STRING": SAMPLE_TEXT, "TYPE_BOOL": False}
        for tensor in inputs:
            size = math.prod(max(1, size) for size in tensor.dims)
            value = usual.get(model_config.type_word(tensor), 1)
            values[tensor.name] = value if size == 1 else [value] * size
        return values
    for name, value in found.items():
        values[name] = value
        if isinstance(value, str) and SAMPLE_MASK in value:
            values[name] = value.replace(SAMPLE_MASK, _mask_token(folder))
    return values


def sample_chat(task: str) -> list[dict[str, Any]]:
    """Messages as OpenAI's clients send them to a model that sees or hears."""
    values: Any = sample_values(task, "", "")
    part: dict[str, Any] = {"input_audio": {"data": values.get("audio"), "format": "wav"}}
    if "image" in values:
        part = {"image_url": {"url": f"data:image/png;base64,{values['image']}"}}
    text = {"type": "text", "text": values["text_input"]}
    return [{"role": "user", "content": [text, {"type": next(iter(part)), **part}]}]


# Paths and bodies of OpenAI's API, by the task.
_OPENAIS: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(COMPLETION_TASKS, ("completions", {"prompt": "I am going"})),
    **{task: ("chat/completions", {"messages": sample_chat(task)}) for task in MEDIA_TASKS},
    **dict.fromkeys(EMBEDDING_TASKS, ("embeddings", {"input": "I am going"})),
    **dict.fromkeys(CLASSIFIER_TASKS, ("classify", {"input": "I am going"})),
}


def openai_curl_line(url: str, model: str, task: str, key: str = "") -> str:
    path, asked = _OPENAIS[task]
    return f"curl {url}/v1/{path}{key} -d '{json.dumps({'model': model, **asked})}'"


def _values(folder: Path) -> Any:
    return newest_json(folder, "model.json") or {}


def _mask_token(folder: Path) -> str:
    """The tokenizer's own word for it: RoBERTa's is ``<mask>``."""
    for path in tokenizer_files(folder):
        tokens = read_json(path).get("added_tokens", [])
        for token in tokens:
            if token["content"].strip("[]<>").lower() == "mask":
                return str(token["content"])
    return SAMPLE_MASK


def tokenizer_files(folder: Path) -> list[Path]:
    values = _values(folder)
    if values.get("local"):
        path = folder / values["model"] / "tokenizer.json"
        return [path] if path.is_file() else []
    cache = folder.parent / values.get("public_name", folder.name) / WEIGHTS_FOLDER
    return sorted(cache.glob("**/snapshots/*/tokenizer.json"))


def curl_lines(
    repository: Path, model: str, url: str, key_variable: str = "", openai_url: str = ""
) -> list[str]:
    """Lines for /infer, /generate, of a model that streams /generate_stream, and for OpenAI's API
    at ``openai_url``, if it has the model's task. ``url`` is the server's, down to ``/v2/models``;
    ``key_variable`` the shell variable that has a caller's key.
    """
    text = (repository / model / "config.pbtxt").read_text(encoding="utf-8")
    config: Any = model_config.parse(text)
    values = sample_request(repository, model, config)
    tensors = {tensor.name: tensor for tensor in config.input}
    infer = {
        "inputs": [
            infer_input(tensors[name], value, config.max_batch_size)
            for name, value in values.items()
        ]
    }
    parameters = model_config.parameters(config)
    engine, task = parameters.get(ENGINE_PARAMETER), parameters.get(TASK_PARAMETER, "")
    key = f' -H "Authorization: Bearer ${key_variable}"' if key_variable else ""
    lines = [
        f"curl{key} {url}/{model}/infer -d '{json.dumps(infer)}'",
        f"curl{key} {url}/{model}/generate -d '{json.dumps(values)}'",
    ]
    if engine is not None:
        stream = json.dumps({**values, "stream": True})
        lines.append(f"curl -N{key} {url}/{engine}/generate_stream -d '{stream}'")
    if openai_url and task in _OPENAIS:
        lines.append(openai_curl_line(openai_url, model, task, key))
    return lines


def infer_input(tensor: Any, value: Value, max_batch_size: int) -> dict[str, object]:
    data = value if isinstance(value, list) else [value]
    shape = [len(data)] if len(tensor.dims) == 1 else [max(1, size) for size in tensor.dims]
    word = model_config.type_word(tensor)
    return {
        "name": tensor.name,
        "datatype": "BYTES" if word == "TYPE_STRING" else word.removeprefix("TYPE_"),
        "shape": [1, *shape] if max_batch_size else shape,
        "data": data,
    }
