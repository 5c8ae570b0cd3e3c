"""Triton's side of text2text generation: that of text generation, loaded another way."""

from __future__ import annotations

from functools import partial

from hf_triton.runtime.engine.triton_model import Loader, TritonModel, serve


class Text2TextGenerationModel(TritonModel):
    """One instance of a served encoder-decoder."""

    def loader(self) -> Loader:
        from hf_triton.text_generation.reception import Reception

        from .loading import load_text2text

        return partial(serve, load_text2text, Reception)
