"""Runs a step as one packed ``[1, num_tokens]`` forward over a cache in pages: decodes and prompt
chunks together, nothing padded.

For models that use transformers' attention interface. Decides no policy: the step says what to
compute.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any

import torch

from hf_triton.runtime.attention import attending, register
from hf_triton.runtime.devices.device import devices_of
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.lora.linear import Adapters
from hf_triton.text_generation.memory.paged_cache import PagedCache

from ..transformers.packed_attention import row_attention
from ..transformers.runner import Runner
from .attention import Attend
from .plain_attention import plain_attention
from .step import PagedStep, lay_out_pages


class PageRunner(Runner):
    """Computes steps over a cache in pages."""

    keeps_pages = True
    supports_drafts = True

    def __init__(self, model: Any, cache: PagedCache, device: torch.device) -> None:
        self.model, self.cache, self.device = model, cache, device
        self._is_pinned = device.type == "cuda" and torch.cuda.is_available()

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_rows, vocab) in the order of ``step.all_rows``; what
        ``StepInputs`` asks for is on the device then.
        """
        host = lay_out_pages(step, self.cache.size.page_size, pinned=self._is_pinned)
        return self.run(host.to(self.device, self.cache))

    @abstractmethod
    def run(self, step: PagedStep) -> torch.Tensor:
        """Logits (len(step.last), vocab) of a step on the device."""


class PagedRunner(PageRunner):
    """Sets the model's attention implementation to paged attention, for as long as it runs, where
    a layer attends.
    """

    name = "paged"

    def __init__(
        self,
        model: Any,
        cache: PagedCache,
        device: torch.device,
        attend: Attend = plain_attention,
    ) -> None:
        super().__init__(model, cache, device)
        self.attend = attend
        self._is_spread = len(devices_of(model)) > 1
        if any(shape.num_kv_heads for shape in cache.shapes):
            model.set_attn_implementation(register())

    def run(self, step: PagedStep) -> torch.Tensor:
        """Logits (len(step.last), vocab) of a step on the device."""
        with attending(partial(row_attention, step, self.attend)):
            output = self.model(
                input_ids=step.token_ids.unsqueeze(0),
                logits_to_keep=self._last(step),
                **self._given(step),
            )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _given(self, step: PagedStep) -> dict[str, Any]:
        """What the model is given beside tokens."""
        return {"position_ids": step.positions.unsqueeze(0), "use_cache": False}

    def _last(self, step: PagedStep) -> torch.Tensor | list[int]:
        """The rows as an index for the last hidden states: where those are on another device than
        the inputs, accelerate's hooks would move a tensor to the wrong one, and leave a list.
        """
        return step.last.tolist() if self._is_spread else step.last


class AdaptedPageRunner(PageRunner):
    """Computes what ``inner`` does, with the adapters whose numbers the step has on the device."""

    def __init__(self, inner: PageRunner, adapters: Adapters) -> None:
        super().__init__(inner.model, inner.cache, inner.device)
        self.inner, self.adapters, self.name = inner, adapters, inner.name

    def run(self, step: PagedStep) -> torch.Tensor:
        with self.adapters.on_device(step.adapters, step.adapters[step.last]):
            return self.inner.run(step)
