"""Triton's side of text generation."""

from __future__ import annotations

from hf_runtime.engine.triton_model import Instance, TritonModel

from .loading import load_engine
from .reception import Reception


class TritonPythonModel(TritonModel):
    """One instance of a served model that generates text."""

    def serve(self, instance: Instance) -> Reception:
        """Loads weights, tokenizer and engine."""
        served = instance.served
        loaded = load_engine(served, instance.placement, instance.num_threads)
        return Reception(loaded, batched=served.max_batch_size > 0)
