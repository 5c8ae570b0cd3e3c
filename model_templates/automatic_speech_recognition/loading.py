"""Puts a served speech model together: files, processor, weights, transcripts, the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hf_runtime.devices.device import Placement
from hf_runtime.errors import LoadError, RequestError
from hf_runtime.media.decoding import MediaLimits
from hf_runtime.weights.loading import load_config, load_model
from hf_runtime.weights.model_files import model_files
from hf_runtime.weights.processors import load_processor
from hf_runtime.weights.served_model import ServedModel
from text_generation.engine.engine import Engine
from text_generation.loading import ModelParts, start_engine
from text_generation.options import Options as EngineOptions

from .options import Options
from .request import SpeechReader
from .transcript import SpeechModel, Wanted
from .whisper.transcript import WhisperModel


@dataclass(frozen=True)
class LoadedSpeech:
    """A model that serves."""

    engine: Engine
    speech: SpeechModel
    tokenizer: Any
    reader: SpeechReader
    options: Options
    limits: MediaLimits
    description: str


def load_speech(served: ServedModel, placement: Placement, num_threads: int) -> LoadedSpeech:
    """Loads everything and starts the engine.

    Raises:
        LoadError: with the one line that the operator reads.
    """
    options = Options(**served.options)
    parts, processor = _load_parts(served, placement)
    speech = speech_model(parts, processor)
    _check_options(speech, options)
    engine = start_engine(served.name, parts, _engine_options(options), placement, num_threads)
    dtype = str(parts.model.dtype).removeprefix("torch.")
    return LoadedSpeech(
        engine=engine,
        speech=speech,
        tokenizer=parts.tokenizer,
        reader=SpeechReader(options, speech.check),
        options=options,
        limits=MediaLimits(0, options.max_audio_s),
        description=f"{served.source} ({dtype}) on {placement.device}, {engine.description}",
    )


def speech_model(parts: ModelParts, processor: Any) -> SpeechModel:
    """How the model transcribes."""
    return WhisperModel(parts.model, processor)


def _load_parts(served: ServedModel, placement: Placement) -> tuple[ModelParts, Any]:
    from transformers import AutoModelForSpeechSeq2Seq

    files = model_files(served)
    config = load_config(served, files)
    processor = load_processor(served, files)
    model = load_model(served, files, AutoModelForSpeechSeq2Seq, config, placement)
    return ModelParts(config, processor.tokenizer, model), processor


def _check_options(speech: SpeechModel, options: Options) -> None:
    try:
        speech.check(Wanted(options.language, options.speech_task))
    except RequestError as error:
        raise LoadError(f"options: {error}") from None


def _engine_options(options: Options) -> EngineOptions:
    """The options as the engine reads them."""
    return EngineOptions(
        engine="in_flight",
        max_num_seqs=options.max_num_seqs,
        max_queue_size=options.max_queue_size,
        kv_cache_gib=options.kv_cache_gib,
        prefix_cache=False,
        unload_grace_s=options.unload_grace_s,
        watchdog_s=options.watchdog_s,
    )
