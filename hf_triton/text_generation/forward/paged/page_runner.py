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
from hf_triton.text_generation.memory.paged_cache import PagedCache

from ..transformers.transformers_runner import CountedPositions, Runner
from .attention import Attend, plain_attention, row_attention
from .step import Decodes, PagedStep, lay_out_pages


class PageRunner(Runner):
    supports_drafts = True

    def __init__(self, model: Any, cache: PagedCache, device: torch.device) -> None:
        self.model, self.cache, self.device = model, cache, device
        self._decodes: Decodes | None = None  # of the last step that had nothing else

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        if self.device.type != "cpu" or step.chunks:
            return self.run(lay_out_pages(step, self.cache, self.device))
        if self._decodes is None or not self._decodes.go_on(step):
            self._decodes = Decodes(step, self.cache)
        return self.run(self._decodes.step)

    @abstractmethod
    def run(self, step: PagedStep) -> torch.Tensor:
        """Logits (len(step.last), vocab) of a step on the device."""


class PagedRunner(PageRunner):
    """Sets the model's attention implementation to attention over pages. ``gives_cache``: for
    models that ask their cache how many tokens came before (Llama 4) or keep keys and values of
    other layers than attend (Gemma 3n, HRM).
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
        # Layers of the cache that no step has written yet.
        self._unwritten = {at for at, shape in enumerate(cache.shapes) if shape.num_kv_heads}
        self._gives_cache = gives_cache
        if self._unwritten:
            model.set_attn_implementation(register())

    def run(self, step: PagedStep) -> torch.Tensor:
        attend = plain_attention if step.has_blocks else self.attend
        with attending(partial(row_attention, step, attend)), self._counted.given(step.positions):
            output = self.model(
                input_ids=step.token_ids.unsqueeze(0),
                # Indices into the last hidden states; a list where those are on another device than
                # the inputs, to which accelerate's hooks would move a tensor.
                logits_to_keep=step.last.tolist() if self._is_spread else step.last,
                **self._given(step),
            )
        if missing := self._unwritten - step.layers:  # so another was written twice
            raise ValueError(f"attention does not compute layers {sorted(missing)} of the cache")
        self._unwritten.clear()
        logits: torch.Tensor = output.logits[0]
        return logits

    def _given(self, step: PagedStep) -> dict[str, Any]:
        given = {"position_ids": step.long_positions.unsqueeze(0), "use_cache": False}
        return {**given, "past_key_values": RowCache(step)} if self._gives_cache else given


class RowCache(Cache):
    """Writes keys and values of a model's layers, and counts tokens before each token."""

    def __init__(self, step: PagedStep) -> None:
        super().__init__(layers=[])
        self._step = step

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """(num_tokens,) int64: added to a token's number in the row it is the position."""
        positions = self._step.long_positions
        return positions - torch.arange(len(positions), device=positions.device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(1, kv_heads, num_tokens, dim) each, unchanged: attention knows the layer by the key."""
        self._step.write(layer_idx, key_states, value_states)
        self._step.keep(key_states, layer_idx)
        return key_states, value_states
