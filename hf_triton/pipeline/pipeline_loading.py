"""Loads a pipeline: its name, its model, its processors, and its engine."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

from hf_triton.runtime import log
from hf_triton.runtime.devices.device import Placement, check_devices_work
from hf_triton.runtime.errors import LoadError, RequestError, reason
from hf_triton.runtime.media.decoding import MediaLimits
from hf_triton.runtime.request.json_text import read_object
from hf_triton.runtime.weights.model_files import model_files
from hf_triton.runtime.weights.served_model import ServedModel
from hf_triton.runtime.weights.weight_loading import check_words, load_config, load_model

from .items import ELSEWHERE, KINDS, OWN_TASKS, ItemReader, Kind
from .options import Options
from .pipeline_engine import PipelineEngine
from .request import CallParameters, RequestReader

_PARTS = ("tokenizer", "image_processor", "feature_extractor", "processor")
_INSTALLED_AS = {"PIL": "pillow"}
_GPU_BATCH = 8


@dataclass(frozen=True)
class LoadedPipeline:
    engine: PipelineEngine
    reader: RequestReader
    options: Options
    description: str


def load(served: ServedModel, placement: Placement, num_threads: int) -> LoadedPipeline:
    """Loads the pipeline on its engine's thread. Raises LoadError."""
    options = served.read_options(Options)
    name = pipeline_name(options.pipeline)
    kind = kind_of_pipeline(name)
    # On a CPU batches gain nothing: padding costs as much as they save.
    suits = kind.batches_safely and placement.device != "cpu"
    batch_size = options.batch_size or (_GPU_BATCH if suits else 1)

    def made() -> Any:
        pipe = load_pipeline(served, name, placement)
        CallParameters(name, pipe).check("options.parameters", defaults)
        return pipe

    engine: PipelineEngine = PipelineEngine(
        name,
        made,
        batch_size=batch_size,
        num_threads=num_threads,
        watchdog_s=options.watchdog_s,
        check_device=lambda: check_devices_work(engine.pipe.model),
    )
    given = "{}" if options.parameters is None else options.parameters
    try:
        defaults = read_object("options.parameters", given)
        engine.thread.start()
    except RequestError as error:
        raise LoadError(str(error)) from None
    pipe = engine.pipe
    limits = MediaLimits(options.max_image_megapixels * 1e6, options.max_audio_s)
    items = ItemReader(kind, limits, _sampling_rate(pipe))
    dtype = str(pipe.model.dtype).removeprefix("torch.")
    what = f"{served.source} ({dtype}) on {placement.device}, {name} pipeline"
    reader = RequestReader(items, CallParameters(name, pipe), defaults, name)
    batches = f", batches of up to {batch_size}" if batch_size > 1 else ""
    return LoadedPipeline(engine, reader, options, what + batches)


def _sampling_rate(pipe: Any) -> int:
    """The sampling rate of the model's sounds, in Hz; 16,000 if it takes no sounds."""
    processor = getattr(pipe, "processor", None)
    extractors = (pipe.feature_extractor, getattr(processor, "feature_extractor", None))
    rates = (getattr(extractor, "sampling_rate", None) for extractor in extractors)
    return next((int(rate) for rate in rates if rate), 16_000)


def pipeline_name(asked: str | None) -> str:
    """transformers' own name for what models.yaml asks for. Raises LoadError."""
    from transformers import __version__
    from transformers.pipelines import SUPPORTED_TASKS, TASK_ALIASES

    name = TASK_ALIASES.get(asked or "", asked or "")
    if name in ELSEWHERE or name.startswith("translation_"):
        hint = ELSEWHERE.get(name, ELSEWHERE["translation"])
        raise LoadError(f"options.pipeline: {name} is not served by a pipeline: {hint}")
    if name in SUPPORTED_TASKS:
        return name
    known = sorted({*SUPPORTED_TASKS, *TASK_ALIASES} - set(ELSEWHERE))
    nearest = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"allowed: {', '.join(known)}"
    raise LoadError(f"options.pipeline: transformers {__version__} has no {name!r}, {hint}")


def kind_of_pipeline(name: str) -> Kind:
    """Raises LoadError where a package that the pipeline needs is missing."""
    kind = KINDS.get(name, Kind())
    if kind.package is not None and importlib.util.find_spec(kind.package) is None:
        package = _INSTALLED_AS.get(kind.package, kind.package)
        raise LoadError(f"the {name} pipeline needs {package}: pip install {package}")
    return kind


def load_pipeline(served: ServedModel, name: str, placement: Placement) -> Any:
    """transformers' pipeline with the model in evaluation mode on its device. Raises LoadError."""
    import transformers

    if name in OWN_TASKS:
        log.info(f"{served.name}: task: {name} serves {name} models faster than their pipeline")
    files = model_files(served)
    config = load_config(served, files)
    model = load_model(served, files, _model_class(name, config), config, placement)
    make: Any = transformers.pipeline
    parts = {
        part: str(files)
        for part in _PARTS
        if getattr(_pipeline_class(name), f"_load_{part}", None) is not False
    }
    spread = getattr(model, "hf_device_map", None) is not None
    try:
        made = make(
            name,
            model=model,
            config=str(files),
            device=None if spread else placement.device,
            trust_remote_code=served.trust_remote_code,
            **parts,
        )
    except Exception as error:
        # transformers raises many kinds; the operator gets one line for any of them.
        line = f"{type(error).__name__}: {reason(error)}"
        raise LoadError(f"{served.source}: the {name} pipeline can't be made: {line}") from error
    check_words(served, made.tokenizer)
    return made


def _model_class(name: str, config: Any) -> Any:
    """The auto class of this pipeline that knows the model, else the class that its files name."""
    import transformers
    from transformers.pipelines import SUPPORTED_TASKS

    architectures = getattr(config, "architectures", None) or []
    tasks: dict[str, Any] = SUPPORTED_TASKS
    remote = getattr(config, "auto_map", None) or {}
    names = {c: _model_names(c, config) for c in tasks[name]["pt"]}
    classes = [c for c, known in names.items() if known or c.__name__ in remote]
    named = [c for c in classes if set(names[c]) & set(architectures)]
    if named or classes:
        return (named or classes)[0]
    found = getattr(transformers, architectures[0], None) if architectures else None
    if found is not None and name in ("image-segmentation", "automatic-speech-recognition"):
        return found  # transformers' own last resort
    what = f"{config.model_type} ({', '.join(architectures) or 'no architecture named'})"
    raise LoadError(f"the {name} pipeline has no model for {what}: is it the model's own task?")


def _model_names(auto_class: Any, config: Any) -> list[str]:
    # No public way asks this without loading.
    found = auto_class._model_mapping.get(type(config), ())  # noqa: SLF001
    return [c.__name__ for c in (found if isinstance(found, tuple) else (found,))]


def _pipeline_class(name: str) -> Any:
    from transformers.pipelines import SUPPORTED_TASKS

    tasks: dict[str, Any] = SUPPORTED_TASKS
    found = tasks[name]["impl"]
    if not isinstance(found, str):  # up to 5.20 or so
        return found
    module, _, class_name = found.rpartition(".")
    return getattr(importlib.import_module(module), class_name)
