"""What to send to a model to try it out: sample values for its inputs, by its task.

Reads the model's folder in the repository, and for the word that stands for a mask the tokenizer's
file beside its weights. Asks no server.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any

from generator.render import model_config
from generator.render.model_folder import VALUES_FILE
from generator.spec.triton_models import ROLE_PARAMETER, TASK_PARAMETER
from generator.yaml_file.regular_file import read_json

Value = str | int | bool | list[str] | list[int] | list[bool]

_SAMPLE_TEXT = "I am going"
_MASK = "[MASK]"
_LABELS = ["sport", "food", "weather"]
_TYPE_STRING = 13  # inference.DataType, model_config.proto
_TYPE_BOOL = 1
_BY_TASK: dict[str, dict[str, Value]] = {
    "feature-extraction": {"text_input": "A dog sleeps under a tree."},
    "text-classification": {"text_input": "I love this film."},
    "token-classification": {"text_input": "My name is Anna Brown and I live in Paris."},
    "question-answering": {
        "question": "Where does Anna live?",
        "context": "Anna lives in Paris. Tom lives in Rome.",
    },
    "fill-mask": {"text_input": f"She drinks a cup of {_MASK}."},
    "zero-shot-classification": {
        "text_input": "Our team won the match.",
        "candidate_labels": _LABELS,
    },
    "text2text-generation": {"text_input": "The small dog sleeps in the garden."},
}

# Its own default is 16 tokens, and the prompt before them.
_FOR_VLLM_BACKEND: dict[str, Value] = {
    "text_input": _SAMPLE_TEXT,
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
    if task == "pipeline":
        return _for_pipeline(folder, config)
    if task == "automatic-speech-recognition":
        return {"audio": _sound()}
    if task in _FILES:
        name, file, question = _FILES[task]
        return {"text_input": question, name: file()}
    found = _BY_TASK.get(task)
    if found is None:
        inputs = [tensor for tensor in config.input if not tensor.optional] or config.input[:1]
        return {tensor.name: _value(tensor) for tensor in inputs}
    return {name: _with_mask(value, folder) for name, value in found.items()}


def sample_chat(task: str) -> list[dict[str, Any]]:
    """Messages as OpenAI's clients send them to a model that sees or hears."""
    name, file, question = _FILES[task]
    part = {
        "image": {"image_url": {"url": f"data:image/png;base64,{file()}"}},
        "audio": {"input_audio": {"data": file(), "format": "wav"}},
    }[name]
    text = {"type": "text", "text": question}
    return [{"role": "user", "content": [text, {"type": next(iter(part)), **part}]}]


def _value(tensor: Any) -> Value:
    size = math.prod(max(1, size) for size in tensor.dims)
    if tensor.data_type == _TYPE_STRING:
        return _SAMPLE_TEXT if size == 1 else [_SAMPLE_TEXT] * size
    if tensor.data_type == _TYPE_BOOL:
        return False if size == 1 else [False] * size
    return 1 if size == 1 else [1] * size


def _for_pipeline(folder: Path, config: Any) -> dict[str, Value]:
    """Its config declares first what it takes: an image, a sound, or a text in ``inputs``."""
    options = _values(folder).get("options", {})
    name = str(options.get("pipeline"))
    first = config.input[0].name
    if name == "document-question-answering":
        return {"image": _picture(), "question": "What colour is it?"}
    files = {"image": _picture, "audio": _sound}
    text = _with_mask(f"She drinks a cup of {_MASK}.", folder) if name == "fill-mask" else None
    found: dict[str, Value] = {first: files[first]() if first in files else text or _SAMPLE_TEXT}
    if "zero-shot" in name:
        found["candidate_labels"] = ["red", "blue"] if first == "image" else _LABELS
    return found


def _values(folder: Path) -> Any:
    return json.loads((folder / VALUES_FILE).read_text(encoding="utf-8"))


def _with_mask(value: Value, folder: Path) -> Value:
    """``[MASK]`` in the tokenizer's own word for it: RoBERTa's is ``<mask>``."""
    if isinstance(value, str) and _MASK in value:
        return value.replace(_MASK, _mask_token(folder))
    return value


def _mask_token(folder: Path) -> str:
    for path in tokenizer_files(folder):
        tokens = read_json(path).get("added_tokens", [])
        for token in tokens:
            if token["content"].strip("[]<>").lower() == "mask":
                return str(token["content"])
    return _MASK


def tokenizer_files(folder: Path) -> list[Path]:
    """Beside a local model's weights, or in the cache that its first load filled."""
    values = _values(folder)
    if values.get("local"):
        path = folder / values["model"] / "tokenizer.json"
        return [path] if path.is_file() else []
    return sorted((folder / "hf_cache").glob("**/snapshots/*/tokenizer.json"))


def _picture() -> str:
    """A red PNG of 32 x 32 pixels in base64."""
    header = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)  # 8 bits of red, green and blue
    pixels = zlib.compress((b"\0" + b"\xdc\x1e\x1e" * 32) * 32, 9)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    packed = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(packed)).decode()


def _sound() -> str:
    """A WAV of a twentieth of a second of silence in base64: 8,000 samples a second, of 8 bits."""
    samples = b"\x80" * 400
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(samples)) + samples
    return base64.b64encode(struct.pack("<4sI", b"RIFF", len(body)) + body).decode()


_FILES = {
    "image-text-to-text": ("image", _picture, "What is this?"),
    "audio-text-to-text": ("audio", _sound, "What do you hear?"),
}
