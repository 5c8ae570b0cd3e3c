"""Loads a served model: files, tokenizer, weights, and the first engine that fits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from hf_triton.runtime import log
from hf_triton.runtime.attention import OwnAttention
from hf_triton.runtime.devices.device import Placement, free_bytes
from hf_triton.runtime.devices.prepacked_linear import prepack
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.tokenizing.lengths import check_characters, tokens_of_part
from hf_triton.runtime.weights.model_files import model_files
from hf_triton.runtime.weights.served_model import ServedModel
from hf_triton.runtime.weights.weight_loading import (
    load_config,
    load_model,
    load_processor,
    load_tokenizer,
)
from hf_triton.text_generation.memory.cache_budget import within_budget

from .engine.adapters_following import AdaptersFollower
from .engine.engine import Engine, EngineSetup
from .engine.generation_rules import decoder_start, eos_token_ids, vocab_size
from .engines.generate.generate_engine import GenerateEngine
from .engines.in_flight.in_flight_engine import InFlightEngine
from .engines.in_flight.runner_selection import UnsupportedModelError
from .engines.vllm.arguments import adapter_files
from .engines.vllm.vllm_loading import make_engine
from .lora.linear import Adapters
from .lora.reading import AdapterReader
from .media.processor import MediaProcessor
from .options import MediaOptions, Options
from .request.chat import ChatTemplate
from .request.media_reader import MediaChatTemplate, MediaReader
from .request.parsing import PromptReader
from .sequence.source import Source
from .structured.compiling import Compiler, GrammarProcesses

_LINE_END = "\n"
_MEDIA_CLASSES = ("AutoModelForMultimodalLM", "AutoModelForSeq2SeqLM")
_CLASSES = ("AutoModelForCausalLM", *_MEDIA_CLASSES)  # those of images and sounds last


@dataclass(frozen=True)
class ModelParts:
    """A model's files. An encoder-decoder of sounds is tried with ``sources``."""

    config: Any
    tokenizer: Any
    model: Any
    media: MediaProcessor | None = None
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class LoadedModel:
    """All that serving a model needs."""

    served: ServedModel
    placement: Placement
    parts: ModelParts
    engine: Engine
    reader: PromptReader

    @property
    def description(self) -> str:
        """Its line for the log."""
        dtype = str(self.parts.model.dtype).removeprefix("torch.")
        at = self.placement.device
        return f"{self.served.source} ({dtype}) on {at}, {self.engine.description}"

    @cached_property
    def compiler(self) -> Compiler:
        setup, size = self.engine.setup, vocab_size(self.parts.model)
        masks = setup.options.engine != "vllm"  # which has its own
        ends = setup.eos_token_ids
        grammars = GrammarProcesses(self.parts.tokenizer, size, ends, masks=masks)
        return Compiler(grammars, setup.options.max_grammar_s)


def load_engine(served: ServedModel, placement: Placement, num_threads: int) -> LoadedModel:
    """Loads everything and starts the engine. Raises LoadError."""
    options = served.read_options(Options)
    engine: Engine
    if options.engine == "vllm":
        engine, tokenizer = make_engine(served, options, placement, num_threads)
        engine.start()
        parts = ModelParts(engine.setup.model.config, tokenizer, engine.setup.model)
        if served.adapters_file:
            AdaptersFollower(served, partial(adapter_files, served), engine).start()
    else:
        parts = load_parts(served, placement)
        takes_adapters = served.adapters or served.adapters_file
        files = AdapterReader(served, parts.config, parts.model.dtype) if takes_adapters else None
        adapters = None if files is None else files.adapters()
        engine = start_engine(served.name, parts, options, placement, num_threads, adapters)
        if files and served.adapters_file and isinstance(engine, InFlightEngine):
            AdaptersFollower(served, files.read, engine).start()
    chat = ChatTemplate(parts.tokenizer, options.tool_parser, options.reasoning_parser)
    reader = PromptReader(
        tokenize=prompt_tokenizer(parts.tokenizer, engine),
        tokenize_word=word_tokenizer(parts.tokenizer),
        chat=chat,
        **reading(parts, engine),
    )
    return LoadedModel(served, placement, parts, engine, reader)


def load_media_engine(served: ServedModel, placement: Placement, num_threads: int) -> LoadedModel:
    """``load_engine`` of a model that reads images or sounds with its texts."""
    options = served.read_options(MediaOptions)
    files = model_files(served)
    parts = load_media_parts(served, files, load_config(served, files), placement)
    media, tokenizer = parts.media, parts.tokenizer
    assert media is not None
    own_template = getattr(media.processor, "chat_template", None)
    tokenizer.chat_template = own_template or tokenizer.chat_template
    chat = MediaChatTemplate(tokenizer, media.tokens, options.tool_parser, options.reasoning_parser)
    largest = options.max_image_megapixels * 1e6 if media.takes_images else options.max_audio_s
    most = options.max_images if media.takes_images else options.max_sounds
    engine = start_engine(
        served.name,
        parts,
        options,
        placement,
        num_threads,
        largest_prompt=partial(media.largest_prompt, largest) if most else None,
    )
    reader = MediaReader(
        processor=media,
        options=options,
        bos_token=tokenizer.bos_token or "",
        tokenize=prompt_tokenizer(tokenizer, engine),
        tokenize_word=word_tokenizer(tokenizer),
        chat=chat,
        **reading(parts, engine),
    )
    return LoadedModel(served, placement, parts, engine, reader)


def load_parts(
    served: ServedModel, placement: Placement, check: Callable[[Any], object] = lambda config: None
) -> ModelParts:
    """Loads a model's files; ``check`` may refuse its configuration before the weights are read."""
    files = model_files(served)
    config = load_config(served, files)
    check(config)
    tokenizer = load_tokenizer(served, files)
    model = load_model(served, files, _auto_class(config, _CLASSES), config, placement)
    return ModelParts(config, tokenizer, model)


def load_media_parts(
    served: ServedModel, files: Path, config: Any, placement: Placement
) -> ModelParts:
    """Loads the processor of images or sounds, which has the tokenizer, and the model."""
    processor = load_processor(served, files)
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None:
        raise LoadError(f"{served.source}: it has no processor of text and images or sounds")
    model = load_model(served, files, _auto_class(config, _MEDIA_CLASSES), config, placement)
    accepted = inspect.signature(model.forward).parameters
    return ModelParts(config, tokenizer, model, MediaProcessor(processor, config, accepted))


def has_media_class(config: Any) -> bool:
    return bool(_classes_of(config, _MEDIA_CLASSES))


def start_engine(
    name: str,
    parts: ModelParts,
    options: Options,
    placement: Placement,
    num_threads: int,
    adapters: Adapters | None = None,
    largest_prompt: Callable[[int], tuple[list[int], Source] | None] | None = None,
) -> Engine:
    device = torch.device(placement.device)
    setup = EngineSetup(
        model=parts.model,
        options=options,
        device=device,
        eos_token_ids=eos_token_ids(parts.model, parts.tokenizer),
        num_threads=num_threads,
        free_bytes=within_budget(name, free_bytes),
        prepare=prepack if device.type == "cpu" else lambda model: None,
        adapters=adapters,
        sources=parts.sources,
        compiled=device.type == "cpu",
        trial_prompts=None if parts.media is None else parts.media.trial_prompts,
        largest_prompt=largest_prompt,
    )
    return start_from_setup(name, setup)


def reading(parts: ModelParts, engine: Engine) -> dict[str, Any]:
    """Arguments of any PromptReader that come from the model's files and its engine."""
    own, options = parts.model.generation_config, engine.setup.options
    return {
        "decoder_start": decoder_start(parts.model),
        "adapters": engine.adapters,
        "output_length": engine.output_length,
        "check_length": engine.check_length,
        "default_repetition_penalty": getattr(own, "repetition_penalty", None) or 1.0,
        "default_timeout_ms": options.default_timeout_ms,
        "max_timeout_ms": options.max_timeout_ms,
        "vocab_size": vocab_size(parts.model),
        "max_model_len": engine.max_model_len,
        "special_token_ids": {
            token.content: token_id
            for token_id, token in parts.tokenizer.added_tokens_decoder.items()
            if token.special
        },
    }


def _auto_class(config: Any, names: tuple[str, ...]) -> Any:
    """The first of these classes of transformers that makes such a model, else the first of all."""
    import transformers

    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    return next(iter(_classes_of(config, names)), getattr(transformers, names[0]))


def _classes_of(config: Any, names: tuple[str, ...]) -> list[Any]:
    """The classes of these names that can load this configuration, alone or by remote code."""
    import transformers

    remote = getattr(config, "auto_map", None) or {}
    classes = (getattr(transformers, name) for name in names)
    return [c for c in classes if type(config) in c._model_mapping or c.__name__ in remote]  # noqa: SLF001


def start_from_setup(name: str, setup: EngineSetup) -> Engine:
    """The engine that the options name; with ``auto`` the in-flight one, else generate."""
    why = ""
    engine: Engine
    if setup.options.engine != "generate":
        engine, own_attention = InFlightEngine(setup), OwnAttention(setup.model)
        try:
            engine.start()
            return engine
        except UnsupportedModelError as error:
            own_attention.restore()  # after whichever runner was tried
            why = str(error)
            if setup.options.engine == "in_flight":
                raise LoadError(
                    f"engine: got in_flight, but it can't hold this model: {why}; use engine: "
                    "generate or auto"
                ) from error
    if setup.adapters is not None:
        because = f", which can't hold this model: {why}" if why else ""
        raise LoadError(f"adapters: only the in_flight engine serves them{because}")
    if setup.options.engine == "auto":
        log.info(f"{name}: engine generate, because {why}")
    engine = GenerateEngine(setup)
    engine.start()
    return engine


def prompt_tokenizer(tokenizer: Any, engine: Engine) -> Callable[..., list[int]]:
    """A function from a prompt to its token ids, which first refuses or cuts a long one."""
    num_known = vocab_size(engine.setup.model)

    def tokenize(
        text: str, *, add_special_tokens: bool = True, num_kept: int | None = None
    ) -> list[int]:
        field = "text_input" if add_special_tokens else "messages"

        def ids(part: str) -> list[int]:
            found: list[int] = tokenizer(part, add_special_tokens=add_special_tokens).input_ids
            return found

        if num_kept is None or num_kept > engine.max_model_len:
            check_characters(field, len(text), engine.max_model_len)
            token_ids = ids(text)
        else:
            token_ids = tokens_of_part(field, text, num_kept, ids, keeps_end=True)
        check_tokens(field, token_ids, num_known)
        return token_ids

    return tokenize


def word_tokenizer(tokenizer: Any) -> Callable[[str], list[tuple[int, ...]]]:
    """A function from a word to its token sequences at the start of a text and within one, with
    and without a space before it; only as the tokenizer splits it.
    """

    def tokens(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False).input_ids)

    before = tokens(_LINE_END)

    def spellings(word: str) -> list[tuple[int, ...]]:
        bare = word.lstrip(" ") or word
        found = []
        for text in (bare, f" {bare}"):
            found.append(tokens(text))
            # Some tokenizers put a space before every text: after a line's end there is none.
            within = tokens(_LINE_END + text)
            if within[: len(before)] == before:
                found.append(within[len(before) :])
        return [ids for ids in dict.fromkeys(found) if ids]

    return spellings


def check_tokens(field: str, token_ids: list[int], num_known: int) -> None:
    """Raises RequestError for no tokens at all, or for one that the model has no logits for."""
    if not token_ids:
        raise RequestError(f"{field}: the tokenizer makes no token of it, send another text")
    if max(token_ids) >= num_known:
        raise RequestError(
            f"{field}: the tokenizer makes token {max(token_ids)} of it, this model has {num_known}"
        )
