"""Triton's side of text generation."""

from __future__ import annotations

from functools import partial

from hf_triton.runtime.engine.triton_model import Loader, TritonModel, serve


class TextGenerationModel(TritonModel):
    """One instance of a served model that generates text."""

    def loader(self) -> Loader:
        from .generation_loading import load_engine
        from .reception import Reception

        return partial(serve, load_engine, Reception)


class MediaModel(TritonModel):
    """One instance of a served model that reads images or sounds with its texts."""

    def loader(self) -> Loader:
        from .generation_loading import load_media_engine
        from .reception import Reception

        return partial(serve, load_media_engine, Reception)
