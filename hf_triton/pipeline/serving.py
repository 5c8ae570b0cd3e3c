"""Assembles a pipeline's parts from the options. Knows neither Triton's requests nor its
responses.
"""

from __future__ import annotations

from typing import Any

from hf_triton.runtime.devices.device import Placement, check_devices_work
from hf_triton.runtime.engine.triton_model import Instance
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.media.decoding import MediaLimits

from .calling import PipelineCall
from .engine import PipelineEngine
from .items import ItemReader
from .kinds import Kind
from .loading import default_parameters, kind_of_pipeline, load_pipeline, pipeline_name
from .options import Options
from .parameters import CallParameters
from .reception import Reception
from .request import RequestReader

_GPU_BATCH = 8


def serve_pipeline(instance: Instance) -> Reception:
    """Loads the pipeline on its engine's thread and starts serving; raises LoadError."""
    served, placement = instance.served, instance.placement
    options = served.read_options(Options)
    name = pipeline_name(options.pipeline)
    kind = kind_of_pipeline(name)
    defaults = default_parameters(options.parameters)
    batch_size = options.batch_size or _batch_size(kind, placement)
    made: list[Any] = []

    def load() -> PipelineCall:
        made.append(load_pipeline(served, name, placement))
        return PipelineCall(name, made[0])

    engine = PipelineEngine(
        load,
        batch_size=batch_size,
        num_threads=instance.num_threads,
        watchdog_s=options.watchdog_s,
        check_device=lambda: check_devices_work(made[0].model),
    )
    engine.thread.start()
    pipe = made[0]
    try:
        call = _checked_parameters(name, pipe, defaults)
    except LoadError:
        engine.thread.stop()
        raise
    limits = MediaLimits(options.max_image_megapixels * 1e6, options.max_audio_s)
    items = ItemReader(kind, limits, _sampling_rate(pipe))
    dtype = str(pipe.model.dtype).removeprefix("torch.")
    what = f"{served.source} ({dtype}) on {placement.device}, {name} pipeline"
    return Reception(
        RequestReader(items, call, defaults, name),
        engine,
        options,
        names=call.names,
        batched=served.max_batch_size > 0,
        description=what + (f", batches of up to {batch_size}" if batch_size > 1 else ""),
        tokenizer=pipe.tokenizer,
    )


def _checked_parameters(name: str, pipe: Any, defaults: dict[str, Any]) -> CallParameters:
    call = CallParameters(name, pipe)
    try:
        call.check("options.parameters", defaults)
    except RequestError as error:
        raise LoadError(str(error)) from None
    return call


def _batch_size(kind: Kind, placement: Placement) -> int:
    """On a CPU batches gain nothing: padding costs as much as they save."""
    return _GPU_BATCH if kind.batches_safely and placement.device != "cpu" else 1


def _sampling_rate(pipe: Any) -> int:
    """The rate, in Hz, of the sounds that the model takes; 16,000 where it takes none."""
    processor = getattr(pipe, "processor", None)
    extractors = (pipe.feature_extractor, getattr(processor, "feature_extractor", None))
    rates = (getattr(extractor, "sampling_rate", None) for extractor in extractors)
    return next((int(rate) for rate in rates if rate), 16_000)
