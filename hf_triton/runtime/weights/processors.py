"""Loads the processor of a model that takes images or sounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..tokenizing.chat_templates import render_in_sandbox
from .loading import check_words, load_part
from .served_model import ServedModel


def load_processor(served: ServedModel, files: Path) -> Any:
    """The model's processor: of text, and of images or sounds."""
    from transformers import AutoProcessor

    with without_videos():
        processor = load_part(served, AutoProcessor, files, part="its processor: ")
    check_words(served, getattr(processor, "tokenizer", None))
    render_in_sandbox(processor)
    return processor


@contextmanager
def without_videos() -> Iterator[None]:
    """Processors are made meanwhile without their part for videos, where torchvision, which that
    part alone needs, is not installed.
    """
    if find_spec("torchvision") is not None:
        yield
        return
    from transformers import ProcessorMixin
    from transformers.models.auto.video_processing_auto import AutoVideoProcessor

    load = AutoVideoProcessor.from_pretrained
    check: Any = ProcessorMixin.check_argument_for_proper_class

    def check_all_but_videos(self: Any, name: str, argument: Any) -> Any:
        return (
            None if name == "video_processor" and argument is None else check(self, name, argument)
        )

    patched: Any = AutoVideoProcessor
    checked: Any = ProcessorMixin
    patched.from_pretrained = lambda *args, **kwargs: None
    checked.check_argument_for_proper_class = check_all_but_videos
    try:
        yield
    finally:
        patched.from_pretrained = load
        checked.check_argument_for_proper_class = check
