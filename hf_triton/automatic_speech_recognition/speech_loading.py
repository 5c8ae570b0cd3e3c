"""Loads a speech model: files, processor, weights, transcripts, the engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from transformers import AutoModelForSpeechSeq2Seq

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.weights.model_files import model_files
from hf_triton.runtime.weights.served_model import ServedModel
from hf_triton.runtime.weights.weight_loading import load_config, load_model, load_processor
from hf_triton.text_generation.engine.engine import Engine
from hf_triton.text_generation.generation_loading import (
    ModelParts,
    has_media_class,
    load_media_parts,
    start_engine,
)
from hf_triton.text_generation.options import engine_options

from .one_window import USUAL_TOKENS, AudioTextModel, EncoderDecoderModel
from .options import Options
from .transcript import SpeechModel, Wanted
from .whisper.transcript import WhisperModel

# Others begin their outputs with tokens that their own processors choose.
_ENCODER_DECODERS = ("whisper", "moonshine", "speech_to_text")


@dataclass(frozen=True)
class LoadedSpeech:
    engine: Engine
    speech: SpeechModel
    options: Options
    description: str


def load_speech(served: ServedModel, placement: Placement, num_threads: int) -> LoadedSpeech:
    """Loads everything and starts the engine. Raises LoadError."""
    options = served.read_options(Options)
    parts, speech = _load(served, options, placement)
    try:
        speech.check(Wanted(options.language, options.speech_task))
    except RequestError as error:
        raise LoadError(f"options: {error}") from None
    media, longest = parts.media, options.max_audio_s
    engine = start_engine(
        served.name,
        parts,
        engine_options(options, engine="in_flight", prefix_cache=False),
        placement,
        num_threads,
        largest_prompt=None if media is None else partial(media.largest_prompt, longest),
    )
    dtype = str(parts.model.dtype).removeprefix("torch.")
    description = f"{served.source} ({dtype}) on {placement.device}, {engine.description}"
    return LoadedSpeech(engine, speech, options, description)


def _load(
    served: ServedModel, options: Options, placement: Placement
) -> tuple[ModelParts, SpeechModel]:
    files = model_files(served)
    config = load_config(served, files)
    if not config.is_encoder_decoder and has_media_class(config):
        parts = load_media_parts(served, files, config, placement)
        assert parts.media is not None
        max_tokens = parts.model.generation_config.max_new_tokens or USUAL_TOKENS
        model = AudioTextModel(parts.media, parts.tokenizer, options.instruction, max_tokens)
        return parts, model
    if config.model_type not in _ENCODER_DECODERS:
        raise LoadError(
            f"task automatic-speech-recognition: {config.model_type} can't run in flight; serve it "
            "with task: pipeline, options: {pipeline: automatic-speech-recognition}"
        )
    processor = load_processor(served, files)
    loaded = load_model(served, files, AutoModelForSpeechSeq2Seq, config, placement)
    kind: type[WhisperModel | EncoderDecoderModel] = (
        WhisperModel if config.model_type == "whisper" else EncoderDecoderModel
    )
    speech = kind(loaded, processor)
    sources = tuple(speech.trial_sources())
    if config.model_type == "whisper":
        own = loaded.generation_config  # each window's rule applies these
        own.suppress_tokens = own.begin_suppress_tokens = own.forced_decoder_ids = None
    return ModelParts(config, processor.tokenizer, loaded, sources=sources), speech
