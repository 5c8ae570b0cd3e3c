"""Triton's side of text2text generation: that of text generation, loaded another way."""

from __future__ import annotations

from hf_runtime.engine.triton_model import Instance, TritonModel
from text_generation.reception import Reception

from .loading import load_text2text


class TritonPythonModel(TritonModel):
    """One instance of a served encoder-decoder."""

    def serve(self, instance: Instance) -> Reception:
        """Loads weights, tokenizer and engine."""
        served = instance.served
        loaded = load_text2text(served, instance.placement, instance.num_threads)
        return Reception(loaded, batched=served.max_batch_size > 0)
