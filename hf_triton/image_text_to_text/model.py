"""The Triton model of image-text models: text generation's with another loader."""

from __future__ import annotations

from functools import partial

from hf_triton.runtime.engine.triton_model import Loader, TritonModel, serve

from .options import Options


class ImageTextToTextModel(TritonModel):
    def loader(self) -> Loader:
        from hf_triton.text_generation.generation_loading import load_media_engine
        from hf_triton.text_generation.reception import Reception

        return partial(serve, partial(load_media_engine, Options), Reception)
