"""Triton's side of a model that reads sounds with its texts: that of text generation, loaded
another way.
"""

from __future__ import annotations

from hf_runtime.engine.triton_model import Instance, TritonModel
from text_generation.media_loading import load_media_engine
from text_generation.reception import Reception

from .options import Options


class TritonPythonModel(TritonModel):
    """One instance of a served model that hears."""

    def serve(self, instance: Instance) -> Reception:
        """Loads weights, processor and engine."""
        served = instance.served
        options = Options(**served.options)
        loaded = load_media_engine(served, options, instance.placement, instance.num_threads)
        return Reception(loaded, batched=served.max_batch_size > 0)
