"""The ``options:`` of a speech recognition model: keys, units, ranges and defaults.

Standard library only: the generator loads this file to check models.yaml, and the server loads it
to read ``model.json``. What means the same as for text-generation is described there.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_triton.runtime.option import above_limit, option, step_watchdog, unload_grace
from hf_triton.text_generation.options import same_option


@dataclass(frozen=True)
class Options:
    # Read by generator/spec/task_folders.py.
    STREAMS = QUANTIZES = True
    PACKAGES = ("text_generation",)
    LOAD = "automatic_speech_recognition.speech_loading:load_speech"
    SERVE = "automatic_speech_recognition.reception:Reception"

    language: str | None = option(
        None,
        "language of requests that name none, as the model writes it (en, english); "
        "default: the model's own, else it is detected",
    )
    speech_task: str | None = option(
        None,
        "transcribe or translate (to English), of requests that name no task; default: "
        "the model's own",
    )
    instruction: str | None = option(
        None,
        "what an audio-text model is told to do with the sound; default: to transcribe "
        "it; a request's prompt replaces it",
    )
    max_audio_s: float = option(1800.0, "longest sound", unit="seconds", above=0)
    max_input_mib: float = option(64.0, "largest request", unit="MiB", above=0)
    max_num_seqs: int | None = option(
        None,
        "sounds transcribed at once; default: as many as fit, at most 128 (CPU) or 512 (GPU)",
        unit="sounds",
        least=1,
        most=1024,
    )
    max_queue_size: int = option(
        256,
        "requests that may wait beyond the running ones; more are refused with 503",
        unit="requests",
        least=0,
    )
    kv_cache_gib: float | None = option(
        None,
        "memory for keys and values, of the transcripts and of the sounds; default: at "
        "most half of the free memory (CPU) or 90 % of it (GPU)",
        unit="GiB",
        above=0,
    )
    num_reader_threads: int = option(
        2,
        "threads that decode sounds and compute their features, beside the model's",
        unit="threads",
        least=1,
        most=64,
    )
    default_timeout_ms: int | None = same_option("default_timeout_ms")
    max_timeout_ms: int | None = same_option("max_timeout_ms")
    unload_grace_s: float = unload_grace()
    watchdog_s: float = step_watchdog()

    def problems(self) -> list[tuple[str, str]]:
        return above_limit(self, "default_timeout_ms", "max_timeout_ms")
