"""Triton's side of speech recognition."""

from __future__ import annotations

from hf_runtime.engine.triton_model import Instance, TritonModel

from .loading import load_speech
from .reception import Reception


class TritonPythonModel(TritonModel):
    """One instance of a served model that transcribes."""

    def serve(self, instance: Instance) -> Reception:
        """Loads weights, processor and engine."""
        served = instance.served
        loaded = load_speech(served, instance.placement, instance.num_threads)
        return Reception(loaded, batched=served.max_batch_size > 0)
