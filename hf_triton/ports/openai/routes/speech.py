"""``/v1/audio/transcriptions`` and ``/v1/audio/translations``: a form with a file in, text out, as
JSON, plain text or subtitles.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from generator.spec.task_sets import SPEECH_TASKS
from hf_triton.ports.openai.openapi import FORM, TEXT, Operation
from hf_triton.ports.openai.routes.answers import Endpoint
from hf_triton.ports.openai.schema.body import Filled, present, read, short
from hf_triton.ports.openai.schema.errors import Names, bad_field, renamed
from hf_triton.ports.openai.triton.tensors import outputs_of, unpack

# Path -> what the model is to do.
PATHS = {"/v1/audio/transcriptions": "transcribe", "/v1/audio/translations": "translate"}
_MOST_FP32 = 3.4028234663852886e38
OUTPUTS = ("text_output", "segments", "language", "duration")
# Names in errors: the path says which task it is.
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
    include: Any = field(default=None, name=_LISTS[1])
    chunking_strategy: Literal["auto"] | None = None
    stream: Literal["false", "False"] | None = None  # Triton's NAME_stream streams

    def inputs(self, task: str) -> dict[str, Any]:
        """The model's tensors by name; ``task`` is transcribe or translate."""
        own = present(self, "language", "prompt", "user", "temperature")
        inputs = {"audio": [self.file], **{n: value for n, value in own.items() if value != ""}}
        timed = _TIMED.get(self.response_format)
        return {
            **inputs,
            **({"task": task} if task == "translate" else {}),
            **({"return_timestamps": timed} if timed else {}),
        }


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


def read_form(form: Mapping[str, list[bytes]]) -> SpeechForm:
    values = {name: _value(name, given) for name, given in form.items()}
    for name in ("file", "model"):
        values[name] = values.get(name) or None
    if isinstance(values.get("temperature"), str):
        with contextlib.suppress(ValueError):
            values["temperature"] = float(values["temperature"])
    given = read(SpeechForm, values)
    if given.file is None:
        raise bad_field("file", "none", "a sound: WAV, FLAC, OGG, MP3")
    return given


def write(asked: SpeechForm, task: str, response: Any) -> Transcript | str:
    """Writes a ModelInferResponse as OpenAI's object, or as a text."""
    data = outputs_of(response, OUTPUTS)
    [text], [listed], [language] = (unpack("BYTES", data[name]) for name in OUTPUTS[:3])
    [duration] = unpack("FP32", data["duration"])
    text, segments, form = text.strip(), json.loads(listed), asked.response_format
    if form == "json":
        return Transcript(text)
    if form == "text":
        return f"{text}\n"
    if form == "verbose_json":
        language = "english" if task == "translate" else language
        numbered: list[Any] = [{"id": n, **one} for n, one in enumerate(segments)]
        return Transcript(text, task, language, round(duration, 3), numbered)
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


HEARING = tuple(
    Endpoint(
        *((path,), SPEECH_TASKS, "tr-", read_form),
        Operation(summary, Transcript, SpeechForm, also=(TEXT,), takes=FORM),
    )
    for path, summary in zip(PATHS, ("Sounds to text", "Sounds to English text"), strict=True)
)
