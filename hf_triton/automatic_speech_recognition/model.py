"""The Triton model of speech recognition."""

from __future__ import annotations

from functools import partial

from hf_triton.runtime.engine.triton_model import Loader, TritonModel, serve


class SpeechRecognitionModel(TritonModel):
    def loader(self) -> Loader:
        from .loading import load_speech
        from .reception import Reception

        return partial(serve, load_speech, Reception)
