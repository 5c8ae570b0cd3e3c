"""The Triton model of text2text generation: text generation's with another loader."""

from __future__ import annotations

from functools import partial

from hf_triton.runtime.engine.triton_model import Loader, TritonModel, serve


class Text2TextGenerationModel(TritonModel):
    def loader(self) -> Loader:
        from hf_triton.text_generation.reception import Reception

        from .text2text_loading import load_text2text

        return partial(serve, load_text2text, Reception)
