"""Reads the sounds of a Triton request, one a row, and checks each field. Triton's memory is
copied; sounds are decoded later, on another thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.media import decoding
from hf_triton.runtime.media.decoding import MediaLimits, waveform
from hf_triton.runtime.request.json_text import short
from hf_triton.runtime.request.tensors import RequestFields, check_on_timeout, text, timeout_ms
from hf_triton.text_generation.request.row_options import read_option
from hf_triton.text_generation.request.sampling_json import lenient_integer
from hf_triton.text_generation.sequence.sampling_params import SamplingParams

from .options import Options
from .transcript import Samples, Wanted

OPTIONS: dict[str, tuple[Callable[[str, Any], Any], Any]] = {
    "language": (text, None),
    "task": (text, None),
    "return_timestamps": (lambda name, value: _timestamps(name, value), ""),
    "prompt": (text, ""),
    "sampling_rate": (lenient_integer, None),
}
# Parameters shared with the tasks that generate text.
_SHARED = (
    *("stream", "max_tokens", "temperature", "top_k", "top_p", "seed"),
    *("timeout_ms", "on_timeout"),
)
SOUNDS = ("audio", "samples")
_MIB = 1024 * 1024
_VERBOSE = "verbose"
_TIMES = {**dict.fromkeys(("none", "false"), ""), "true": "segments"}


@dataclass(frozen=True)
class SpeechRow:
    """One sound as it came. ``params`` are any window's but for its max_tokens."""

    sound: bytes | str | Samples
    sampling_rate: int | None
    wanted: Wanted
    params: SamplingParams
    timeout_ms: int | None
    fails_on_timeout: bool
    streams: bool

    @property
    def num_bytes(self) -> int:
        return self.sound.nbytes if isinstance(self.sound, np.ndarray) else len(self.sound)

    def samples(self, sampling_rate: int, limits: MediaLimits) -> Samples:
        """(num_samples,) float32 at the given rate. Raises RequestError for an invalid sound."""
        if isinstance(self.sound, np.ndarray):
            rate = self.sampling_rate
            return waveform("samples", self.sound, rate, sampling_rate, limits)
        return decoding.sound("audio", self.sound, sampling_rate, limits)


@dataclass(frozen=True)
class SpeechReader:
    """Reads requests with the options as defaults; ``check`` is the model's."""

    options: Options
    check: Callable[[Wanted], None]

    def read(self, fields: RequestFields) -> list[SpeechRow]:
        fields.check_parameters((*OPTIONS, *_SHARED, *SOUNDS))
        num_rows = fields.count_rows(*SOUNDS)
        files, array = fields.raw_lists("audio"), fields.inputs.get("samples")
        arrays: list[Samples | None] = [None] * num_rows
        if array is not None:
            arrays = [*np.asarray(array, dtype=np.float32).reshape(num_rows, -1)]
        columns = {name: fields.values(name, *option) for name, option in OPTIONS.items()}
        columns |= {name: read_option(fields, name) for name in _SHARED}
        rows = [{name: column[n] for name, column in columns.items()} for n in range(num_rows)]
        num_bytes = sum(len(file) for row in files for file in row)
        num_bytes += sum(array.nbytes for array in arrays if array is not None)
        if num_bytes > self.options.max_input_mib * _MIB:
            raise RequestError(
                f"audio: got {num_bytes / _MIB:.1f} MiB, at most {self.options.max_input_mib:g} "
                "(max_input_mib)"
            )
        return [
            self._row(row, file[0] if file else None, array, f" in row {n}" if num_rows > 1 else "")
            for n, (row, file, array) in enumerate(zip(rows, files, arrays, strict=True))
        ]

    def _row(
        self, row: dict[str, Any], file: bytes | str | None, array: Samples | None, where: str
    ) -> SpeechRow:
        sound = array if file is None else file
        if sound is None or (file is not None and array is not None):
            found = "missing" if sound is None else "given with samples"
            raise RequestError(f"audio: {found}{where}, send one of audio and samples")
        if (array is None) != (row["sampling_rate"] is None):
            wants = "missing, samples need it" if file is None else "given without samples"
            raise RequestError(f"sampling_rate: {wants}, in Hz{where}")
        wanted = Wanted(
            language=row["language"] or self.options.language,
            task=row["task"] or self.options.speech_task,
            timestamps=bool(row["return_timestamps"]),
            verbose=row["return_timestamps"] == _VERBOSE,
            prompt=row["prompt"],
            max_tokens=row["max_tokens"],
        )
        self.check(wanted)
        check_on_timeout(row["on_timeout"])
        limits_ms = self.options.default_timeout_ms, self.options.max_timeout_ms
        params = SamplingParams(
            max_tokens=1 if row["max_tokens"] is None else row["max_tokens"],
            temperature=row["temperature"] or 0.0,
            top_k=row["top_k"],
            top_p=row["top_p"],
            seed=row["seed"],
        )
        return SpeechRow(
            sound=sound,
            sampling_rate=row["sampling_rate"],
            wanted=wanted,
            params=params,
            timeout_ms=timeout_ms(row["timeout_ms"], *limits_ms),
            fails_on_timeout=row["on_timeout"] == "error",
            streams=row["stream"],
        )


def _timestamps(name: str, value: Any) -> str:
    word = str(value).lower() if isinstance(value, bool) else text(name, value)
    word = _TIMES.get(word, word)
    if word not in ("", "segments", _VERBOSE):
        of_words = word in ("word", "words")
        hint = "; for times of words use task: pipeline" if of_words else ""
        raise RequestError(f"{name}: got {short(word)}, allowed: none, segments or verbose{hint}")
    return word
