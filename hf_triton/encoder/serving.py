"""A served encoder, or one step of an ensemble, loaded and ready to take requests."""

from __future__ import annotations

from hf_triton.runtime.engine.triton_model import Instance

from .ensemble.roles import load_role
from .options import EncoderOptions
from .reception import Reception
from .task import EncoderTask


def serve(
    options_class: type[EncoderOptions], task_class: type[EncoderTask], instance: Instance
) -> Reception:
    """Loads what the instance's role says. Raises LoadError."""
    served = instance.served
    options = served.read_options(options_class)
    place, num_threads = instance.placement, instance.num_threads
    loaded = load_role(served, options, task_class, place, num_threads)
    batched = served.max_batch_size > 0
    return Reception(loaded, options, inputs=instance.inputs, batched=batched)
