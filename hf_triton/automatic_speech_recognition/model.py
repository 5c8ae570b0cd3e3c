"""Triton's side of speech recognition."""

from __future__ import annotations

from hf_triton.runtime.engine.triton_model import Loader, TritonModel


class SpeechRecognitionModel(TritonModel):
    """One instance of a served model that transcribes."""

    def loader(self) -> Loader:
        """Of weights, processor and engine."""
        from .serving import serve

        return serve
