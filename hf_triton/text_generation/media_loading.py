"""Puts a served model together that reads images or sounds with its texts."""

from __future__ import annotations

from functools import partial

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.weights.loading import load_config
from hf_triton.runtime.weights.model_files import model_files
from hf_triton.runtime.weights.served_model import ServedModel

from .loading import (
    LoadedModel,
    chat_reading,
    load_media_parts,
    loaded_model,
    prompt_tokenizer,
    reading,
    start_engine,
)
from .media_options import MediaOptions
from .request.bad_words import word_tokenizer
from .request.media_chat import MediaChatTemplate
from .request.media_reader import MediaReader


def load_media_engine(
    options_class: type[MediaOptions], served: ServedModel, placement: Placement, num_threads: int
) -> LoadedModel:
    """Loads everything and starts the engine.

    Raises:
        LoadError: with the one line that the operator reads.
    """
    options = served.read_options(options_class)
    files = model_files(served)
    parts = load_media_parts(served, files, load_config(served, files), placement)
    assert parts.media is not None
    tokenizer, own = parts.tokenizer, getattr(parts.media.processor, "chat_template", None)
    tokenizer.chat_template = own or tokenizer.chat_template
    chat = MediaChatTemplate(
        tokenizer, parts.media.tokens, options.tool_parser, options.reasoning_parser
    )
    media = parts.media
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
        tokenize=prompt_tokenizer(tokenizer, engine),
        tokenize_word=word_tokenizer(tokenizer),
        **chat_reading(chat),
        processor=parts.media,
        chat=chat,
        options=options,
        bos_token=tokenizer.bos_token or "",
        **reading(parts, engine),
    )
    return loaded_model(served, placement, parts, engine, reader)
