"""Triton's side of text2text generation: that of text generation, loaded another way."""

from __future__ import annotations

from text_generation.model import TritonPythonModel as TextGeneration

from .loading import load_text2text


class TritonPythonModel(TextGeneration):
    """One instance of a served encoder-decoder."""

    load = staticmethod(load_text2text)
