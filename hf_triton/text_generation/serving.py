"""A served model of text, loaded and ready to take requests."""

from __future__ import annotations

from collections.abc import Callable

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.engine.triton_model import Instance
from hf_triton.runtime.weights.served_model import ServedModel

from .loading import LoadedModel
from .reception import Reception

Load = Callable[[ServedModel, Placement, int], LoadedModel]


def serve(load: Load, instance: Instance) -> Reception:
    """Loads weights, tokenizer and engine. Raises LoadError."""
    served = instance.served
    loaded = load(served, instance.placement, instance.num_threads)
    return Reception(loaded, batched=served.max_batch_size > 0)
