"""``/v1/audio/transcriptions`` and ``/v1/audio/translations``: a form with a file in, text out, as
JSON, plain text or subtitles. And ``POST /`` of a model that hears, as Hugging Face's servers have
it: the file itself in, or base64 of it in JSON.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from hf_triton.ports.openai.openapi import FORM, TEXT, Operation
from hf_triton.ports.openai.schema.body import (
    Count,
    Filled,
    Ignored,
    Integer,
    Number,
    only,
    present,
    read,
    read_object,
    short,
)
from hf_triton.ports.openai.schema.errors import Names, bad_field, renamed
from hf_triton.ports.openai.schema.request import NARROWEST_TOP_P
from hf_triton.ports.openai.triton.tensors import outputs_of, unpack

# Path -> what the model is to do.
PATHS = {"/v1/audio/transcriptions": "transcribe", "/v1/audio/translations": "translate"}
_HUB = "hub"  # a response_format of its own
_MOST_FP32 = 3.4028234663852886e38
OUTPUTS = ("text_output", "segments", "language", "duration")
# Of errors: which task it is, is the path's.
NAMES = Names(
    renamed({"audio": "file", "return_timestamps": "response_format", "task": "model"}),
    {"transcribe: send none": "transcribe: use /v1/audio/transcriptions"},
)
_TIMED = {"verbose_json": "verbose", "srt": "segments", "vtt": "segments"}
_LISTS = ("timestamp_granularities[]", "include[]")  # log-probabilities OpenAI has of some models
_File = Annotated[Any, Meta(extra_json_schema={"type": "string", "format": "binary"})]


class SpeechForm(Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's; ``file`` is WAV, FLAC, OGG or MP3."""

    file: _File
    model: Filled
    language: str | None = None
    prompt: str | None = None
    user: str | None = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    temperature: Annotated[float, Meta(ge=-_MOST_FP32, le=_MOST_FP32)] | None = None
    granularities: list[Literal["segment"]] | None = field(default=None, name=_LISTS[0])
    include: Ignored = field(default=None, name=_LISTS[1])
    chunking_strategy: Literal["auto"] | None = None
    stream: Literal["false", "False"] | None = None  # Triton's NAME_stream streams


class GenerationParameters(Struct, kw_only=True, forbid_unknown_fields=True):
    max_new_tokens: Count | None = None
    temperature: Number | None = None
    top_k: Integer | None = None
    top_p: Number | None = None
    language: str | None = None
    task: str | None = None
    do_sample: Annotated[Any, only(False)] = None
    num_beams: Annotated[Any, only(1)] = None


class HubParameters(Struct, kw_only=True, forbid_unknown_fields=True):
    return_timestamps: bool | str | None = None
    generation_parameters: GenerationParameters | None = None
    generate_kwargs: GenerationParameters | None = None


class SoundRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    inputs: Filled
    parameters: HubParameters | None = None
    options: Ignored = None


# The model's names of the parameters for generating, where they are others.
_GENERATION = {
    **{name: name for name in GenerationParameters.__struct_fields__[:6]},
    "max_new_tokens": "max_tokens",
}
_HUB_NAMES = Names(
    renamed(
        {
            "audio": "inputs",
            "return_timestamps": "parameters.return_timestamps",
            **{one: f"parameters.generation_parameters.{n}" for n, one in _GENERATION.items()},
        }
    )
)


class Segment(Struct):
    """Start and end are in seconds."""

    id: int
    start: float
    end: float
    text: str
    seek: int | UnsetType = UNSET
    tokens: list[int] | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    avg_logprob: float | UnsetType = UNSET
    compression_ratio: float | UnsetType = UNSET
    no_speech_prob: float | UnsetType = UNSET


class Transcript(Struct):
    text: str
    task: str | UnsetType = UNSET
    language: str | UnsetType = UNSET
    duration: float | UnsetType = UNSET
    segments: list[Segment] | UnsetType = UNSET


class Chunk(Struct):
    text: str
    timestamp: list[float]


class Heard(Struct):
    text: str
    chunks: list[Chunk] | UnsetType = UNSET


def operation(task: str) -> Operation:
    summary = {"transcribe": "Sounds to text", "translate": "Sounds to English text"}[task]
    return Operation(summary, Transcript, SpeechForm, also=(TEXT,), takes=FORM)


@dataclass(frozen=True)
class SpeechRequest:
    """``inputs`` are the model's tensors by name; ``task`` is transcribe or translate."""

    model: str
    task: str
    response_format: str
    inputs: Mapping[str, Any]
    names: Names = NAMES


def read_form(task: str, form: Mapping[str, list[bytes]]) -> SpeechRequest:
    values = {name: _value(name, given) for name, given in form.items()}
    for name in ("file", "model"):
        values[name] = values.get(name) or None
    if isinstance(values.get("temperature"), str):
        with contextlib.suppress(ValueError):
            values["temperature"] = float(values["temperature"])
    given = read(SpeechForm, values)
    if given.file is None:
        raise bad_field("file", "none", "a sound: WAV, FLAC, OGG, MP3")
    named = {name: getattr(given, name) for name in ("language", "prompt", "user", "temperature")}
    inputs = {"audio": [given.file], **{n: v for n, v in named.items() if v not in (None, "")}}
    if task == "translate":
        inputs["task"] = task
    if given.response_format in _TIMED:
        inputs["return_timestamps"] = _TIMED[given.response_format]
    return SpeechRequest(given.model, task, given.response_format, inputs)


def read_sound(data: bytes, model: str) -> SpeechRequest:
    """A body is a sound where it is no JSON: its Content-Type does not tell."""
    if not data.lstrip().startswith(b"{"):
        return SpeechRequest(model, "transcribe", _HUB, {"audio": [data]}, _HUB_NAMES)
    given = read(SoundRequest, read_object(data))
    parameters = given.parameters or HubParameters()
    inputs: dict[str, Any] = {"audio": given.inputs}
    if parameters.return_timestamps:
        timed = parameters.return_timestamps
        inputs["return_timestamps"] = "segments" if timed is True else timed
    for asked in (parameters.generate_kwargs, parameters.generation_parameters):
        found = present(asked, *_GENERATION)
        inputs.update({_GENERATION[name]: value for name, value in found.items()})
    if inputs.get("top_p") == 0:
        inputs["top_p"] = NARROWEST_TOP_P
    return SpeechRequest(model, "transcribe", _HUB, inputs, _HUB_NAMES)


def write(asked: SpeechRequest, response: Any) -> Heard | Transcript | str:
    """What a ModelInferResponse says in OpenAI's or the Hub's object, or as a text."""
    data = outputs_of(response, OUTPUTS)
    [text], [listed], [language] = (unpack("BYTES", data[name]) for name in OUTPUTS[:3])
    [duration] = unpack("FP32", data["duration"])
    text, segments, form = text.strip(), json.loads(listed), asked.response_format
    if form == _HUB:
        chunks = [Chunk(one["text"], [one["start"], one["end"]]) for one in segments]
        return Heard(text, chunks if "return_timestamps" in asked.inputs else UNSET)
    if form == "json":
        return Transcript(text)
    if form == "text":
        return text + "\n"
    if form == "verbose_json":
        language = "english" if asked.task == "translate" else language
        numbered: list[Any] = [{"id": n, **one} for n, one in enumerate(segments)]
        return Transcript(text, asked.task, language, round(duration, 3), numbered)
    point = "," if form == "srt" else "."
    cues = [
        f"{_time(one['start'], point)} --> {_time(one['end'], point)}\n{one['text'].strip()}\n"
        for one in segments
    ]
    numbered_cues = (f"{number}\n{cue}" for number, cue in enumerate(cues, start=1))
    return "\n".join(numbered_cues if form == "srt" else ["WEBVTT\n", *cues])


def _value(name: str, given: list[bytes]) -> Any:
    if name not in _LISTS and len(given) > 1:
        raise bad_field(short(name), f"{len(given)} values", "one")
    try:
        values = given if name == "file" else [one.decode() for one in given]
    except UnicodeDecodeError:
        raise bad_field(short(name), "bytes that are not UTF-8", "a text") from None
    return values if name in _LISTS else values[0]


def _time(seconds: float, point: str) -> str:
    """``00:00:01,500`` of SubRip, ``00:00:01.500`` of WebVTT."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    clock = f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{clock}{point}{thousandths:03d}"
