"""The ``options:`` of a pipeline model: keys, units, ranges and defaults.

Standard library only: the generator loads this file to check models.yaml. Which pipelines there are
is known to transformers alone, so a name is checked when the model loads.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    """How one transformers pipeline is run. ``None`` means: decided when the model loads."""

    pipeline: str | None = field(
        default=None,
        metadata={
            "help": "required: the name of the transformers pipeline, such as image-classification"
        },
    )
    parameters: str | None = field(
        default=None,
        metadata={
            "help": 'parameters of every call, as a JSON object, such as {"top_k": 3}; a '
            "request's parameters override them"
        },
    )
    batch_size: int | None = field(
        default=None,
        metadata={
            "help": "inputs computed together, of requests with equal parameters; default: 1 on a "
            "CPU, 8 on a GPU for pipelines whose answers do not depend on the batch",
            "unit": "inputs",
            "min": 1,
            "max": 1024,
        },
    )
    max_queue_size: int = field(
        default=256,
        metadata={
            "help": "requests that are computed or wait; more are refused with 503",
            "unit": "requests",
            "min": 1,
        },
    )
    max_input_mib: float = field(
        default=32.0,
        metadata={
            "help": "largest request, all its inputs together",
            "unit": "MiB",
            "exclusive_min": 0,
        },
    )
    max_image_megapixels: float = field(
        default=64.0,
        metadata={
            "help": "largest image; a small compressed file can be a huge image",
            "unit": "megapixels",
            "exclusive_min": 0,
        },
    )
    max_audio_s: float = field(
        default=600.0,
        metadata={"help": "longest sound", "unit": "seconds", "exclusive_min": 0},
    )
    num_reader_threads: int = field(
        default=2,
        metadata={
            "help": "threads that decode images and sounds and encode answers, beside the model's",
            "unit": "threads",
            "min": 1,
            "max": 64,
        },
    )
    watchdog_s: float = field(
        default=1800.0,
        metadata={
            "help": "longest call of the pipeline; when one takes longer, its requests fail, and "
            "the model is not ready until the call ends",
            "unit": "seconds",
            "exclusive_min": 0,
        },
    )
    unload_grace_s: float = field(
        default=20.0,
        metadata={
            "help": "how long running requests may continue when the model is unloaded; those that "
            "are not finished then are answered with 503",
            "unit": "seconds",
            "min": 0,
        },
    )

    def problems(self) -> list[tuple[str, str]]:
        """Mistakes that a single field's range does not show, each as (field, message)."""
        if self.pipeline is not None and self.pipeline.strip():
            return []
        got = "nothing" if self.pipeline is None else "an empty text"
        message = f"got {got}, expected the name of a transformers pipeline: image-classification, "
        return [("pipeline", f"{message}automatic-speech-recognition, …")]
