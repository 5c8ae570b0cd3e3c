"""The Triton model of speech recognition."""

from __future__ import annotations

from functools import partial

from hf_triton.runtime.engine.triton_model import Loader, TritonModel, serve


class SpeechRecognitionModel(TritonModel):
    def loader(self) -> Loader:
        from .reception import Reception
        from .speech_loading import load_speech

        return partial(serve, load_speech, Reception)
