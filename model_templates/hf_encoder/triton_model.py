"""Triton's side of every encoder task; a task's model.py fills in its options and its task."""

from __future__ import annotations

from typing import ClassVar

from hf_runtime.engine.triton_model import Instance, TritonModel

from .ensemble.roles import load_role
from .options import EncoderOptions
from .reception import Reception
from .task import EncoderTask


class EncoderModel(TritonModel):
    """One instance of a served encoder: all of it, or one step of an ensemble."""

    options_class: ClassVar[type[EncoderOptions]]
    task_class: ClassVar[type[EncoderTask]]

    def serve(self, instance: Instance) -> Reception:
        """Loads what the instance's role says."""
        served = instance.served
        options = self.options_class(**served.options)
        place, num_threads = instance.placement, instance.num_threads
        loaded = load_role(served, options, self.task_class, place, num_threads)
        batched = served.max_batch_size > 0
        return Reception(loaded, options, inputs=instance.inputs, batched=batched)
