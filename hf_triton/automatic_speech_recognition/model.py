"""Triton's side of speech recognition."""

from __future__ import annotations

from functools import partial

from hf_triton.runtime.engine.triton_model import Loader, TritonModel, serve


class SpeechRecognitionModel(TritonModel):
    """One instance of a served model that transcribes."""

    def loader(self) -> Loader:
        from .loading import load_speech
        from .reception import Reception

        return partial(serve, load_speech, Reception)
