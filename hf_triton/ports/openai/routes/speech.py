"""``/v1/audio/transcriptions`` and ``/v1/audio/translations``: a form with a file in, text out, as
JSON, plain text or subtitles. And ``POST /`` of a model that hears, as Hugging Face's servers have
it: the file itself in, or base64 of it in JSON.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_triton.ports.openai.openapi_schema import answers
from hf_triton.ports.openai.openapi_schema.operation import FORM, TEXT, Operation
from hf_triton.ports.openai.schema import json_body
from hf_triton.ports.openai.schema.body import Body, object_of
from hf_triton.ports.openai.schema.errors import bad_field
from hf_triton.ports.openai.schema.json_body import only, read_object, short
from hf_triton.ports.openai.schema.names import Names, by_field
from hf_triton.ports.openai.schema.request import NARROWEST_TOP_P
from hf_triton.ports.openai.triton.catalog import ServedModel
from hf_triton.ports.openai.triton.tensors import infer_request, outputs_of, read_texts

# Path -> what the model is to do.
PATHS = {"/v1/audio/transcriptions": "transcribe", "/v1/audio/translations": "translate"}
OUTPUTS = ("text_output", "segments", "language", "duration")
# Of errors: which task it is, is the path's.
NAMES = Names(
    by_field({"audio": "file", "return_timestamps": "response_format", "task": "model"}),
    {"transcribe: send none": "transcribe: use /v1/audio/transcriptions"},
)
_FORMATS = ("json", "text", "verbose_json", "srt", "vtt")
_TIMED = {"verbose_json": "verbose", "srt": "segments", "vtt": "segments"}
_GRANULARITIES, _INCLUDE = "timestamp_granularities[]", "include[]"
# What must be there, and what it is.
_NEEDED = {"file": "a sound: WAV, FLAC, OGG, MP3", "model": "a text"}


@json_body.takes(type="number")
def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
        struct.pack("<f", number)  # Triton's
    except (ValueError, OverflowError):
        raise bad_field(name, "another text", "a number") from None
    return number


@json_body.takes(type="array", items={"enum": ["segment"]})
def _granularities(name: str, value: Any) -> list[str]:
    if any(one != "segment" for one in value):
        raise bad_field(name, "another text", "segment")
    return list(value)


@json_body.takes(enum=["false"])
def _no_stream(name: str, value: Any) -> Any:
    if value.lower() != "false":
        raise bad_field(name, "another text", "false (Triton's NAME_stream streams)")
    return value


BODY = Body(
    {
        "file": json_body.file,
        **dict.fromkeys(("model", "language", "prompt", "user"), json_body.text),
        "response_format": json_body.one_of(*_FORMATS),
        "temperature": _number,
        _GRANULARITIES: _granularities,
        # Log-probabilities of tokens, which OpenAI has of some models alone.
        _INCLUDE: json_body.ignored,
        "chunking_strategy": only("auto"),
        "stream": _no_stream,
    },
    tuple(_NEEDED),
)
# Of the Hub's parameters for generating: the model's names of them.
_GENERATION = {
    "max_new_tokens": ("max_tokens", json_body.count),
    "temperature": ("temperature", json_body.number),
    "top_k": ("top_k", json_body.integer),
    "top_p": ("top_p", json_body.number),
    "language": ("language", json_body.text),
    "task": ("task", json_body.text),
}
_OF_GENERATION = object_of(
    Body(
        {
            **{name: check for name, (_, check) in _GENERATION.items()},
            "do_sample": only(False),
            "num_beams": only(1),
        },
        (),
    )
)


@json_body.takes(anyOf=[{"type": "boolean"}, {"type": "string"}])
def _timestamps(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "segments" if value else ""
    return json_body.text(name, value)


HUB_BODY = Body(
    {
        "inputs": json_body.filled,
        "parameters": object_of(
            Body(
                {
                    "return_timestamps": _timestamps,
                    "generation_parameters": _OF_GENERATION,
                    "generate_kwargs": _OF_GENERATION,
                },
                (),
            )
        ),
        "options": json_body.ignored,
    },
    ("inputs",),
)
_HUB_NAMES = Names(
    by_field(
        {
            "audio": "inputs",
            "return_timestamps": "parameters.return_timestamps",
            **{one: f"parameters.generation_parameters.{n}" for n, (one, _) in _GENERATION.items()},
        }
    )
)
_HUB = "hub"  # a response_format of its own


def operation(task: str) -> Operation:
    """What the served schema tells of a path."""
    summary = {"transcribe": "Sounds to text", "translate": "Sounds to English text"}[task]
    return Operation(summary, answers.Transcript, BODY, also=(TEXT,), takes=FORM)


@dataclass(frozen=True)
class SpeechRequest:
    """``inputs`` are the model's tensors by name; ``task`` is transcribe or translate. ``names``
    are those that a model's errors have for its caller.
    """

    model: str
    task: str
    response_format: str
    inputs: Mapping[str, Any]
    names: Names = NAMES


@dataclass(frozen=True)
class Speech:
    """What a model heard; ``segments`` have start and end in seconds, and text."""

    text: str
    segments: list[Any]
    language: str
    duration: float


def read(task: str, form: Mapping[str, list[bytes]]) -> SpeechRequest:
    """What a form's fields ask for. Raises ApiError, 400."""
    values = {name: _value(name, given) for name, given in form.items()}
    BODY.check(values)
    for name, needed in _NEEDED.items():
        if not values.get(name):
            raise bad_field(name, "none", needed)
    response_format = values.get("response_format", "json")
    inputs: dict[str, Any] = {"audio": [values["file"]]}
    inputs.update({n: values[n] for n in ("language", "prompt", "user") if values.get(n)})
    if "temperature" in values:
        inputs["temperature"] = float(values["temperature"])
    if task == "translate":
        inputs["task"] = task
    if response_format in _TIMED:
        inputs["return_timestamps"] = _TIMED[response_format]
    return SpeechRequest(values["model"], task, response_format, inputs)


def read_sound(data: bytes, model: str) -> SpeechRequest:
    """What a body asks of a model that is known already: it is a sound where it is no JSON, which
    its Content-Type does not tell. Raises ApiError, 400.
    """
    if not data.lstrip().startswith(b"{"):
        return SpeechRequest(model, "transcribe", _HUB, {"audio": [data]}, _HUB_NAMES)
    given = HUB_BODY.check(read_object(data))
    if "inputs" not in given:
        raise bad_field("inputs", "none", "a sound in base64")
    parameters = given.get("parameters", {})
    inputs: dict[str, Any] = {"audio": given["inputs"]}
    if parameters.get("return_timestamps"):
        inputs["return_timestamps"] = parameters["return_timestamps"]
    for asked in (parameters.get(one, {}) for one in ("generate_kwargs", "generation_parameters")):
        inputs.update({own: asked[name] for name, (own, _) in _GENERATION.items() if name in asked})
    inputs.update({n: float(inputs[n]) for n in ("temperature", "top_p") if n in inputs})
    if inputs.get("top_p") == 0:
        inputs["top_p"] = NARROWEST_TOP_P
    return SpeechRequest(model, "transcribe", _HUB, inputs, _HUB_NAMES)


def request(
    model: ServedModel, asked: SpeechRequest, request_id: str, caller: Mapping[str, str]
) -> Any:
    """The ModelInferRequest; ``caller`` are parameters of it."""
    inputs = {**asked.inputs, **caller}
    return infer_request(
        model.triton_name, request_id, inputs, batched=model.is_batched, outputs=OUTPUTS
    )


def read_speech(response: Any) -> Speech:
    """The outputs of a ModelInferResponse. Raises ValueError where they are not as they must be."""
    data = outputs_of(response, OUTPUTS)
    [text], [segments], [language] = (read_texts(data[name]) for name in OUTPUTS[:3])
    (duration,) = struct.unpack("<f", data["duration"])
    return Speech(text.strip(), json.loads(segments), language, duration)


def write(asked: SpeechRequest, found: Speech) -> dict[str, Any] | str:
    """OpenAI's object or the Hub's, or the text of the other formats."""
    if asked.response_format == _HUB:
        chunks = [
            {"text": one["text"], "timestamp": [one["start"], one["end"]]} for one in found.segments
        ]
        return {
            "text": found.text,
            **({"chunks": chunks} if "return_timestamps" in asked.inputs else {}),
        }
    if asked.response_format == "json":
        return {"text": found.text}
    if asked.response_format == "text":
        return found.text + "\n"
    if asked.response_format == "verbose_json":
        return {
            "task": asked.task,
            "language": "english" if asked.task == "translate" else found.language,
            "duration": round(found.duration, 3),
            "text": found.text,
            "segments": [{"id": n, **segment} for n, segment in enumerate(found.segments)],
        }
    is_srt = asked.response_format == "srt"
    cues = [
        (f"{number}\n" if is_srt else "")
        + f"{_time(one['start'], is_srt)} --> {_time(one['end'], is_srt)}\n{one['text'].strip()}\n"
        for number, one in enumerate(found.segments, start=1)
    ]
    return "\n".join(cues if is_srt else ["WEBVTT\n", *cues])


def _value(name: str, given: list[bytes]) -> Any:
    if name in (_GRANULARITIES, _INCLUDE):
        return [_text(name, one) for one in given]
    if len(given) > 1:
        raise bad_field(short(name), f"{len(given)} values", "one")
    return given[0] if name == "file" else _text(short(name), given[0])


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise bad_field(name, "bytes that are not UTF-8", "a text") from None


def _time(seconds: float, is_srt: bool) -> str:
    """``00:00:01,500`` of SubRip, ``00:00:01.500`` of WebVTT."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    point = "," if is_srt else "."
    clock = f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{clock}{point}{thousandths:03d}"
