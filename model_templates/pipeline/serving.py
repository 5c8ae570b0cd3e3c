"""The parts of a served pipeline, put together from the options. Knows neither Triton's requests
nor its responses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hf_runtime.devices.device import Placement
from hf_runtime.errors import LoadError, RequestError
from hf_runtime.weights.served_model import ServedModel

from .calling import PipelineCall
from .engine import PipelineEngine, load_failure
from .items import ItemReader
from .kinds import Kind
from .loading import default_parameters, kind_of_pipeline, load_pipeline, pipeline_name
from .media import MediaLimits
from .options import Options
from .parameters import CallParameters
from .reception import Reception
from .request import RequestReader

_GPU_BATCH = 8


@dataclass(frozen=True)
class ServedPipeline:
    """A pipeline that serves."""

    engine: PipelineEngine
    reception: Reception
    description: str
    unload_grace_s: float

    def stop(self, grace_s: float) -> None:
        """Finishes what is here within ``grace_s``, fails the rest, ends every thread."""
        self.reception.drain(grace_s)
        self.engine.stop()
        self.reception.close()


def serve_pipeline(served: ServedModel, placement: Placement, num_threads: int) -> ServedPipeline:
    """Loads the pipeline on its engine's thread and starts serving; raises LoadError."""
    options = Options(**served.options)
    name = pipeline_name(options.pipeline)
    kind = kind_of_pipeline(name)
    defaults = default_parameters(options.parameters)
    batch_size = options.batch_size or _batch_size(kind, placement)
    made: list[Any] = []

    def load() -> PipelineCall:
        made.append(load_pipeline(served, name, placement))
        return PipelineCall(name, made[0])

    engine = PipelineEngine(load, batch_size=batch_size, num_threads=num_threads)
    _start(engine)
    try:
        reception = _reception(served, options, engine, kind, name, made[0], defaults)
    except LoadError:
        engine.stop()
        raise
    dtype = str(made[0].model.dtype).removeprefix("torch.")
    what = f"{served.source} ({dtype}) on {placement.device}, {name} pipeline"
    batches = f", batches of up to {batch_size}" if batch_size > 1 else ""
    return ServedPipeline(engine, reception, what + batches, options.unload_grace_s)


def _reception(
    served: ServedModel,
    options: Options,
    engine: PipelineEngine,
    kind: Kind,
    name: str,
    pipe: Any,
    defaults: dict[str, Any],
) -> Reception:
    call = CallParameters(name, pipe)
    try:
        call.check("options.parameters", defaults)
    except RequestError as error:
        raise LoadError(str(error)) from None
    limits = MediaLimits(options.max_image_megapixels * 1e6, options.max_audio_s)
    items = ItemReader(kind, limits, _sampling_rate(pipe))
    return Reception(
        RequestReader(items, call, defaults, name),
        engine,
        names=call.names,
        max_queue_size=options.max_queue_size,
        max_input_mib=options.max_input_mib,
        num_threads=options.num_reader_threads,
        batched=served.max_batch_size > 0,
    )


def _start(engine: PipelineEngine) -> None:
    try:
        engine.start()
    except LoadError:
        raise
    except Exception as error:
        # Out of memory, a broken checkpoint: the operator gets one line.
        raise load_failure(error) from error


def _batch_size(kind: Kind, placement: Placement) -> int:
    """On a CPU batches gain nothing: padding costs what they save."""
    return _GPU_BATCH if kind.batches_safely and placement.device != "cpu" else 1


def _sampling_rate(pipe: Any) -> int:
    """Of the sounds that the model takes; whatever where it takes none."""
    processor = getattr(pipe, "processor", None)
    extractors = (pipe.feature_extractor, getattr(processor, "feature_extractor", None))
    rates = (getattr(extractor, "sampling_rate", None) for extractor in extractors)
    return next((int(rate) for rate in rates if rate), 16_000)
