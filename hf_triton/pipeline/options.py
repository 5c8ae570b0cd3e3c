"""The ``options:`` of a pipeline model: keys, units, ranges and defaults.

Standard library only: the generator loads this file to check models.yaml. Which pipelines there are
is known to transformers alone, so a name is checked when the model loads.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_triton.runtime.option import option, unload_grace


@dataclass(frozen=True)
class Options:
    LOAD, SERVE = "pipeline.pipeline_loading:load", "pipeline.reception:Reception"

    pipeline: str | None = option(
        None, "required: the name of the transformers pipeline, such as image-classification"
    )
    parameters: str | None = option(
        None,
        'parameters of every call, as a JSON object, such as {"top_k": 3}; a '
        "request's parameters override them",
    )
    batch_size: int | None = option(
        None,
        "inputs computed together, of requests with equal parameters; default: 1 on a "
        "CPU, 8 on a GPU for pipelines whose answers do not depend on the batch",
        unit="inputs",
        least=1,
        most=1024,
    )
    max_queue_size: int = option(
        256,
        "requests that are computed or wait; more are refused with 503",
        unit="requests",
        least=1,
    )
    max_input_mib: float = option(
        32.0, "largest request, all its inputs together", unit="MiB", above=0
    )
    max_image_megapixels: float = option(
        64.0,
        "largest image; a small compressed file can be a huge image",
        unit="megapixels",
        above=0,
    )
    max_audio_s: float = option(600.0, "longest sound", unit="seconds", above=0)
    num_reader_threads: int = option(
        2,
        "threads that decode images and sounds and encode answers, beside the model's",
        unit="threads",
        least=1,
        most=64,
    )
    watchdog_s: float = option(
        1800.0,
        "longest call of the pipeline; when one takes longer, its requests fail, and "
        "the model is not ready until the call ends",
        unit="seconds",
        above=0,
    )
    unload_grace_s: float = unload_grace()

    def problems(self) -> list[tuple[str, str]]:
        if self.pipeline is not None and self.pipeline.strip():
            return []
        got = "nothing" if self.pipeline is None else "an empty text"
        message = f"got {got}, expected the name of a transformers pipeline: image-classification, "
        return [("pipeline", f"{message}automatic-speech-recognition, …")]
