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
from transformers import Cache

from hf_triton.runtime.attention import attending, register
from hf_triton.runtime.devices.device import devices_of
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.lora.linear import Adapters
from hf_triton.text_generation.memory.paged_cache import PagedCache

from ..transformers.positions import CountedPositions
from ..transformers.runner import Runner
from .attention import Attend, row_attention
from .plain_attention import plain_attention
from .step import Decodes, PagedStep, lay_out_pages


class PageRunner(Runner):
    """Computes steps over a cache in pages."""

    supports_drafts = True

    def __init__(self, model: Any, cache: PagedCache, device: torch.device) -> None:
        self.model, self.cache, self.device = model, cache, device
        self._is_pinned = device.type == "cuda" and torch.cuda.is_available()
        self._decodes: Decodes | None = None  # of the last step that had nothing else

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_rows, vocab) in the order of ``step.all_rows``; what
        ``StepInputs`` asks for is on the device then.
        """
        if self.device.type != "cpu" or step.chunks or step.inputs.adapters:
            host = lay_out_pages(step, pinned=self._is_pinned)
            return self.run(host.to(self.device, self.cache))
        if self._decodes is None or not self._decodes.go_on(step):
            self._decodes = Decodes(step, self.cache)
        return self.run(self._decodes.step)

    @abstractmethod
    def run(self, step: PagedStep) -> torch.Tensor:
        """Logits (len(step.last), vocab) of a step on the device."""


class PagedRunner(PageRunner):
    """Sets the model's attention implementation to paged attention, for as long as it runs, where
    a layer attends. ``gives_cache``: to models that ask their cache for more than keys and values:
    how many tokens came before (Llama 4), or to keep them of other layers than attend (Gemma 3n,
    HRM).
    """

    name = "packed"

    def __init__(
        self,
        model: Any,
        cache: PagedCache,
        device: torch.device,
        attend: Attend = plain_attention,
        *,
        gives_cache: bool = False,
    ) -> None:
        super().__init__(model, cache, device)
        self.attend = attend
        self._is_spread = len(devices_of(model)) > 1
        self._counted = CountedPositions(model)
        self._kept = {at for at, shape in enumerate(cache.shapes) if shape.num_kv_heads}
        self._is_checked, self._gives_cache = not self._kept, gives_cache
        if self._kept:
            model.set_attn_implementation(register())

    def run(self, step: PagedStep) -> torch.Tensor:
        """Logits (len(step.last), vocab) of a step on the device."""
        attend = plain_attention if step.has_blocks else self.attend
        with attending(partial(row_attention, step, attend)), self._counted.given(step.positions):
            output = self.model(
                input_ids=step.token_ids.unsqueeze(0),
                logits_to_keep=self._last(step),
                **self._given(step),
            )
        if not self._is_checked:
            self._check(step)
        logits: torch.Tensor = output.logits[0]
        return logits

    def _check(self, step: PagedStep) -> None:
        """Raises ValueError where a layer of the cache was not written: another was, twice."""
        if missing := self._kept - step.layers:
            raise ValueError(f"attention says nothing of layers {sorted(missing)} of the cache")
        self._is_checked = True

    def _given(self, step: PagedStep) -> dict[str, Any]:
        """What the model is given beside tokens."""
        given = {"position_ids": step.long_positions.unsqueeze(0), "use_cache": False}
        return {**given, "past_key_values": RowCache(step)} if self._gives_cache else given

    def _last(self, step: PagedStep) -> torch.Tensor | list[int]:
        """The rows as an index for the last hidden states: where those are on another device than
        the inputs, accelerate's hooks would move a tensor to the wrong one, and leave a list.
        """
        return step.last.tolist() if self._is_spread else step.last


class RowCache(Cache):
    """Writes keys and values where a model's layers say, and answers for each token."""

    def __init__(self, step: PagedStep) -> None:
        super().__init__(layers=[])
        self._step = step

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """(num_tokens,) int64: with tokens' numbers in the row, their positions."""
        positions = self._step.long_positions
        return positions - torch.arange(len(positions), device=positions.device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(1, kv_heads, num_tokens, dim) each, as they are: attention knows the layer by them."""
        self._step.write(layer_idx, key_states, value_states)
        self._step.keep(key_states, layer_idx)
        return key_states, value_states


class AdaptedPageRunner(PageRunner):
    """Computes what ``inner`` does, with the adapters whose numbers the step has on the device."""

    def __init__(self, inner: PageRunner, adapters: Adapters) -> None:
        super().__init__(inner.model, inner.cache, inner.device)
        self.inner, self.adapters, self.name = inner, adapters, inner.name

    def run(self, step: PagedStep) -> torch.Tensor:
        with self.adapters.on_device(step.adapters, step.adapters[step.last]):
            return self.inner.run(step)
