"""Computes a batch as one forward of packed tokens, without padding.

Texts lie one after the other in one ``[1, num_tokens]`` row, over which linear layers and norms run
without padding; in attention (runtime/attention.py), and only there, texts are told apart. Texts of
equal length lie side by side, so that each length is one call without a copy.

For models that use transformers' attention interface. A model that mixes tokens outside of
attention (such as by convolutions) would mix texts: the trial at load detects that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from typing import Any

import torch
import torch.nn.functional as F

from hf_triton.runtime.attention import OwnAttention, attending, register

from ..texts.encoding import Encoding
from .packed_rows import PackedRows
from .runner import RunnerSetup, call_options, check_rotation


class PackedRunner(PackedRows):
    """Replaces the model's attention function until ``close``."""

    name = "packed tokens"

    def __init__(self, setup: RunnerSetup) -> None:
        super().__init__(setup)
        model = setup.model
        if not getattr(model, "_supports_attention_backend", False):
            raise TypeError("the model does not use transformers' attention interface")
        check_rotation(setup)
        if getattr(model.config, "token_dropout", False):
            raise TypeError("its embeddings depend on how many of a text's tokens are masked")
        self._body = model.base_model
        self._options = call_options(model)
        self._own_attention = OwnAttention(model)
        # Set once, not for each forward: that took 15 % of a short one.
        self._own_attention.replace(register())

    def close(self) -> None:
        self._own_attention.restore()

    def _inputs(self, row: Sequence[Encoding]) -> dict[str, torch.Tensor]:
        """The model's inputs for a row, (1, num_tokens) int64 each."""
        device = self.setup.device
        ids = [list(chain.from_iterable(encoding.input_ids for encoding in row))]
        inputs = {
            "input_ids": torch.tensor(ids, device=device),
            "position_ids": self.positions(row).unsqueeze(0),
        }
        if self.setup.has_token_types:
            types = [e.token_type_ids or [0] * len(e) for e in row]
            inputs["token_type_ids"] = torch.tensor(
                [list(chain.from_iterable(types))], device=device
            )
        return inputs

    def hidden(self, row: Sequence[Encoding], wanted: list[int] | None) -> torch.Tensor:
        with attending(partial(packed_attention, PackedRow([len(encoding) for encoding in row]))):
            found = self._body(**self._inputs(row), **self._options)
        hidden: torch.Tensor = found.last_hidden_state[0]
        return hidden if wanted is None else hidden[wanted]


@dataclass
class PackedRow:
    """The texts of a row, by their ``lengths`` in tokens, equal ones beside each other."""

    lengths: list[int]
    _masks: dict[tuple[object, ...], torch.Tensor] = field(default_factory=dict)

    @property
    def groups(self) -> Iterator[tuple[int, int]]:
        """(number of texts, length) for each run of equal lengths, in the row's order."""
        for length, group in groupby(self.lengths):
            yield sum(1 for _ in group), length

    def window_mask(self, length: int, window: int, *, causal: bool, like: Any) -> torch.Tensor:
        """(length, length) bool: True where token i may look at token j, at most ``window - 1``
        away.
        """
        key = (length, window, causal, like.device)
        if key not in self._masks:
            places = torch.arange(length, device=like.device)
            distance = places.unsqueeze(1) - places
            near = distance.abs() < window
            self._masks[key] = near & (distance >= 0) if causal else near
        return self._masks[key]


def packed_attention(
    row: PackedRow,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query (1, heads, num_tokens, dim), key and value (1, kv_heads, num_tokens, dim) -> (1,
    num_tokens, heads, dim).

    Keyword arguments that are not known here are ignored: what they would change shows in the check
    at load.
    """
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    grouped = query.shape[1] != key.shape[1]
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # (tokens, heads, dim)
    out = torch.empty((q.shape[0], q.shape[1], v.shape[2]), dtype=q.dtype, device=q.device)
    first = 0
    for count, length in row.groups:
        last = first + count * length
        mask = None
        if sliding_window and sliding_window < length:
            mask = row.window_mask(length, sliding_window, causal=causal, like=q)
        texts = [t[first:last].unflatten(0, (count, length)).transpose(1, 2) for t in (q, k, v)]
        attended = F.scaled_dot_product_attention(
            texts[0],
            texts[1],
            texts[2],
            attn_mask=mask,
            is_causal=causal and mask is None,
            scale=scaling,
            enable_gqa=grouped,
        )  # (count, heads, length, dim)
        out[first:last].unflatten(0, (count, length)).copy_(attended.transpose(1, 2))
        first = last
    return out.unsqueeze(0), None
