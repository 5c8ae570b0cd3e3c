"""Loads an encoder-decoder: its files, its languages, and the generate engine."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

from hf_triton.runtime import log
from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError, reason
from hf_triton.runtime.weights.served_model import ServedModel
from hf_triton.text_generation.engine.engine import Engine
from hf_triton.text_generation.engine.generation_rules import decoder_start, vocab_size
from hf_triton.text_generation.generation_loading import (
    LoadedModel,
    ModelParts,
    load_parts,
    reading,
    start_engine,
    word_tokenizer,
)
from hf_triton.text_generation.memory.layer_shapes import max_lengths
from hf_triton.text_generation.options import Options as EngineOptions
from hf_triton.text_generation.options import engine_options

from .options import Options
from .source import Encode, Languages, SourceReader, source_encoder

_MAX_TOKENS = 128
_LONGEST = 1_000_000  # tokenizers without a limit say 10^30


def load_text2text(served: ServedModel, placement: Placement, num_threads: int) -> LoadedModel:
    """Loads everything and starts the engine. Raises LoadError."""
    options = served.read_options(Options)
    parts = load_parts(served, placement, _require_encoder_decoder)
    own_prefix = apply_task_params(parts.model, options.task_specific_params)
    languages = Languages(
        parts.tokenizer,
        decoder_start(parts.model),
        is_forced=parts.model.generation_config.forced_bos_token_id is not None,
        source_lang=options.source_lang,
        target_lang=options.target_lang,
    )
    _log_what_may_surprise(served.name, parts, options)
    own = parts.model.generation_config  # lengths count the decoder's start; the engine clears them
    min_tokens = max(int(own.min_new_tokens or 0), int(own.min_length or 0) - 1, 0)
    engine = start_engine(
        served.name, parts, _engine_options(parts, options), placement, num_threads
    )
    encode = _encoder(parts, engine, languages)
    reader = SourceReader(
        tokenize=lambda text, *, add_special_tokens=True, num_kept=None: encode(
            text, languages.special_tokens, truncate=False
        ),
        tokenize_word=word_tokenizer(_target_tokenizer(parts.tokenizer)),
        default_min_tokens=min_tokens,
        encode=encode,
        languages=languages,
        prefix=own_prefix if options.prefix is None else options.prefix,
        truncation=options.truncation,
        beams=options.num_beams,
        **reading(parts, engine),
    )
    return LoadedModel(served, placement, parts, engine, reader)


def _require_encoder_decoder(config: Any) -> None:
    if not config.is_encoder_decoder:
        raise LoadError(
            f"task text2text-generation: {config.model_type} is not an encoder-decoder; serve it "
            "with task: text-generation"
        )


def _engine_options(parts: ModelParts, options: Options) -> EngineOptions:
    own, beams = parts.model.generation_config, options.num_beams
    longest = own.max_length and max(1, own.max_length - 1)  # it counts the decoder's start
    own_max_tokens = int(own.max_new_tokens or longest or _MAX_TOKENS)
    max_model_len, limit = options.max_model_len, parts.tokenizer.model_max_length
    if max_model_len is None and limit <= _LONGEST:
        with contextlib.suppress(LoadError):  # the model can't hold as much
            max_model_len = max_lengths(parts.config, limit)[0]
    return engine_options(
        options,
        engine="generate" if beams > 1 else "auto",
        max_model_len=max_model_len,
        max_num_seqs=options.max_num_seqs or (max(32, beams) if beams > 1 else None),
        default_max_tokens=options.default_max_tokens or own_max_tokens,
    )


def _encoder(parts: ModelParts, engine: Engine, languages: Languages) -> Encode:
    max_length = engine.max_source_len
    assert max_length is not None
    framings = (languages.special_tokens, *languages.special_tokens_by_source.values())
    most = max(special_tokens.size for special_tokens in framings)
    if most >= max_length:
        raise LoadError(f"max_model_len: got {max_length}, but special tokens alone are {most}")
    return source_encoder(
        parts.tokenizer, max_length=max_length, vocab_size=vocab_size(parts.model)
    )


def _target_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer of outputs: Marian's is in another mode."""
    if not hasattr(tokenizer, "spm_target"):
        return tokenizer
    target = copy.deepcopy(tokenizer)
    target._switch_to_target_mode()  # noqa: SLF001
    return target


def _log_what_may_surprise(name: str, parts: ModelParts, options: Options) -> None:
    own_beams = parts.model.generation_config.num_beams or 1
    if own_beams > 1 and options.num_beams == 1:
        log.info(
            f"{name}: answers are greedy; the model's own settings search with {own_beams} beams, "
            f"as the option num_beams: {own_beams} does"
        )
    if options.num_beams > 1:
        log.info(f"{name}: engine generate, because beams are searched for in padded batches")
    known = getattr(parts.config, "task_specific_params", None) or {}
    if known and options.task_specific_params is None and options.prefix is None:
        listed = ", ".join(sorted(known))
        log.info(f"{name}: no prefix; the option task_specific_params can be {listed}")


def apply_task_params(model: Any, name: str | None) -> str:
    """Changes the model's settings for generation to those of its ``task_specific_params`` of that
    name; returns their prefix, else the model's own, which may be empty. Raises LoadError.
    """
    known = getattr(model.config, "task_specific_params", None) or {}
    if name is not None and name not in known:
        listed = ", ".join(sorted(known)) or "nothing, for the model has none"
        raise LoadError(f"task_specific_params: got {name!r}, allowed: {listed}")
    params = dict(known[name]) if name is not None else {}
    prefix = params.pop("prefix", None) or getattr(model.config, "prefix", None)
    try:
        model.generation_config.update(**params)
    except (ValueError, TypeError) as error:
        raise LoadError(f"task_specific_params: {name}: {reason(error)}") from error
    return str(prefix or "")
