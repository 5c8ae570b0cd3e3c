"""A served model of speech, loaded and ready to take requests."""

from __future__ import annotations

from hf_triton.runtime.engine.triton_model import Instance

from .loading import load_speech
from .reception import Reception


def serve(instance: Instance) -> Reception:
    """Loads weights, processor and engine. Raises LoadError."""
    served = instance.served
    loaded = load_speech(served, instance.placement, instance.num_threads)
    return Reception(loaded, batched=served.max_batch_size > 0)
