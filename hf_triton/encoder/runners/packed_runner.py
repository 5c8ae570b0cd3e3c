"""Computes a batch as one forward of packed tokens, without padding.

Texts lie one after the other in one ``[1, num_tokens]`` row, over which linear layers and norms run
without padding; in attention (runtime/attention.py), and only there, texts are told apart. Texts of
equal length lie side by side, so that each length is one call without a copy.

For models that use transformers' attention interface. A model that mixes tokens outside of
attention (such as by convolutions) would mix texts: the trial at load detects that.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import accumulate, chain, groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from hf_triton.runtime.attention import OwnAttention, attending, register
from hf_triton.runtime.tokenizing.lengths import first_position

from ..texts.encoding import Encoding
from .encoder_runner import Runner, RunnerSetup, call_options, check_rotation, output_of


class PackedRows(Runner):
    """Packs texts by length into a row, and applies the head to the wanted outputs."""

    def __init__(self, setup: RunnerSetup) -> None:
        super().__init__(setup)
        self._head = None if setup.output == "hidden" else Head(setup.model)
        self.first = first_position(setup.model)
        config = setup.model.config.get_text_config()
        self._reads_last, self._pad_id = False, getattr(config, "pad_token_id", None)
        if setup.output == "sequences":
            assert self._head is not None
            weight = next(setup.model.parameters())
            self._reads_last = self._head.reads_last(config.hidden_size, weight)
        self._arange = np.arange(self.first + setup.max_length)

    @torch.inference_mode()
    def forward(self, batch: Sequence[Encoding]) -> list[torch.Tensor]:
        order = sorted(range(len(batch)), key=lambda index: _lengths(batch[index]))
        row = [batch[index] for index in order]
        outputs = self._outputs(self.hidden(row, self._wanted_tokens(row)), row)
        found: list[torch.Tensor] = [outputs[0]] * len(batch)
        for index, output in zip(order, outputs, strict=True):
            found[index] = output
        return found

    @abstractmethod
    def hidden(self, row: Sequence[Encoding], wanted: list[int] | None) -> torch.Tensor:
        """The last hidden states of a row's ``wanted`` tokens, or of all: (tokens, size)."""

    def positions(self, row: Sequence[Encoding]) -> torch.Tensor:
        """The position of each token of a row, (tokens,) int64."""
        # By NumPy: each operator of torch would give other threads the interpreter's lock.
        positions = np.concatenate([self._positions_of(encoding) for encoding in row])
        return torch.from_numpy(positions).to(self.setup.device)

    def _positions_of(self, encoding: Encoding) -> npt.NDArray[np.int64]:
        """RoBERTa's kind does not count padding tokens, and a text may contain one, as "<pad>"."""
        padding = self.first - 1
        if padding < 0 or padding not in encoding.input_ids:
            return self._arange[self.first : self.first + len(encoding)]
        counted = np.array(encoding.input_ids) != padding
        positions: npt.NDArray[np.int64] = counted.cumsum() * counted + padding
        return positions

    def _wanted_tokens(self, row: Sequence[Encoding]) -> list[int] | None:
        """The tokens of the row whose outputs are wanted; None for all."""
        firsts = accumulate(map(len, row[:-1]), initial=0)
        if self.setup.output == "sequences":
            return [first + self._read(one) for first, one in zip(firsts, row, strict=True)]
        if all(encoding.positions is None for encoding in row):
            return None
        places = [range(len(e)) if e.positions is None else e.positions for e in row]
        return [n + place for n, own in zip(firsts, places, strict=True) for place in own]

    def _read(self, encoding: Encoding) -> int:
        """The token whose output gives a text's logits: the first, or the last that is not
        padding.
        """
        if not self._reads_last:
            return 0
        ids = encoding.input_ids
        return next((i for i in reversed(range(len(ids))) if ids[i] != self._pad_id), 0)

    def _outputs(self, hidden: torch.Tensor, row: Sequence[Encoding]) -> Any:
        """hidden (wanted tokens, size) -> each encoding's output, in the row's order."""
        if self.setup.output == "sequences":
            assert self._head is not None
            return output_of(self.setup, self._head(hidden.unsqueeze(1))).unbind()
        if self._head is not None:
            hidden = output_of(self.setup, self._head(hidden.unsqueeze(0)))[0]
        return hidden.split([encoding.num_outputs for encoding in row])


class Head:
    """The part of ``model`` beyond ``model.base_model``: a stand-in for the base model returns
    given hidden states, and the model's own code applies its head to them.
    """

    def __init__(self, model: Any) -> None:
        pad = getattr(model.config.get_text_config(), "pad_token_id", None)
        self._token = 1 if pad == 0 else 0  # no id that counts as padding
        self._body = _StandInBody(model.base_model)
        self._model = copy.copy(model)
        # A copy shares its modules' table: the stand-in must not reach the model itself.
        self._model._modules = {  # noqa: SLF001, nn.Module has no public way
            **model._modules,  # noqa: SLF001
            model.base_model_prefix: self._body,
        }

    def __call__(self, hidden: torch.Tensor) -> Any:
        """(batch, length, hidden) -> what the model returns."""
        self._body.hidden = hidden
        ids = hidden.new_full(hidden.shape[:2], self._token, dtype=torch.long)
        try:
            return self._model(input_ids=ids)
        finally:
            self._body.hidden = None

    def reads_last(self, hidden_size: int, like: torch.Tensor) -> bool:
        """Returns True if the logits come from a text's last token, as in decoders."""
        draws = torch.Generator().manual_seed(0)
        hidden = torch.randn((1, 2, hidden_size), generator=draws).to(like)
        of_both, of_last = (self(part).logits for part in (hidden, hidden[:, 1:]))
        return bool(torch.equal(of_both, of_last))


class _StandInBody(nn.Module):
    def __init__(self, body: Any) -> None:
        super().__init__()
        self.hidden: torch.Tensor | None = None
        self._pooler = getattr(body, "pooler", None)
        self._activation = getattr(body, "pooler_activation", None)  # ALBERT's is outside

    def forward(self, *_: Any, **__: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        assert self.hidden is not None
        return BaseModelOutputWithPooling(
            last_hidden_state=self.hidden, pooler_output=self._pooled(self.hidden)
        )

    def _pooled(self, hidden: torch.Tensor) -> Any:
        if self._pooler is None:
            return None
        if self._activation is not None:
            return self._activation(self._pooler(hidden[:, 0]))
        return self._pooler(hidden)


class PackedRunner(PackedRows):
    """Replaces the model's attention function."""

    name = "packed tokens"

    def __init__(self, setup: RunnerSetup) -> None:
        super().__init__(setup)
        model = setup.model
        if not getattr(model, "_supports_attention_backend", False):
            raise TypeError("the model does not use transformers' attention interface")
        check_rotation(setup)
        if getattr(model.config, "token_dropout", False):
            raise TypeError("its embeddings change with the number of masked tokens")
        self._body = model.base_model
        self._options = call_options(model)
        # Set once: for each forward it took 15 % of a short one.
        OwnAttention(model).replace(register())

    def _inputs(self, row: Sequence[Encoding]) -> dict[str, torch.Tensor]:
        device = self.setup.device
        ids = [list(chain.from_iterable(encoding.input_ids for encoding in row))]
        inputs = {
            "input_ids": torch.tensor(ids, device=device),
            "position_ids": self.positions(row).unsqueeze(0),
        }
        if self.setup.has_token_types:
            types = chain.from_iterable(e.token_type_ids or [0] * len(e) for e in row)
            inputs["token_type_ids"] = torch.tensor([list(types)], device=device)
        return inputs

    def hidden(self, row: Sequence[Encoding], wanted: list[int] | None) -> torch.Tensor:
        groups = [(len(list(texts)), *lengths) for lengths, texts in groupby(map(_lengths, row))]
        with attending(partial(packed_attention, groups, cache(window_mask))):
            found = self._body(**self._inputs(row), **self._options)
        hidden: torch.Tensor = found.last_hidden_state[0]
        return hidden if wanted is None else hidden[wanted]


def _lengths(encoding: Encoding) -> tuple[int, int]:
    """The number of tokens, and of those that are seen."""
    return len(encoding), encoding.num_seen or len(encoding)


def window_mask(length: int, window: int, device: torch.device, *, causal: bool) -> torch.Tensor:
    """(length, length) bool: True where token i may look at token j."""
    places = torch.arange(length, device=device)
    distance = places.unsqueeze(1) - places
    near = distance.abs() < window
    return near & (distance >= 0) if causal else near


def packed_attention(
    groups: Sequence[tuple[int, int, int]],
    masks: Callable[..., torch.Tensor],
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
    num_tokens, heads, dim). ``groups`` are (number of texts, length, tokens that are seen) in the
    row's order.

    Unknown keyword arguments are ignored: what they would change shows in the check at load.
    """
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    grouped = query.shape[1] != key.shape[1]
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # (tokens, heads, dim)
    out = torch.empty((q.shape[0], q.shape[1], v.shape[2]), dtype=q.dtype, device=q.device)
    first = 0
    for count, length, seen in groups:
        last = first + count * length
        mask = None
        if sliding_window and sliding_window < length:
            mask = masks(length, sliding_window, q.device, causal=causal)
        texts = [t[first:last].unflatten(0, (count, length)).transpose(1, 2) for t in (q, k, v)]
        if causal and mask is None and seen < length:
            mask = masks(length, length, q.device, causal=True)
        attended = F.scaled_dot_product_attention(
            texts[0],
            texts[1][:, :, :seen],
            texts[2][:, :, :seen],
            attn_mask=mask if mask is None else mask[:, :seen],
            is_causal=causal and mask is None,
            scale=scaling,
            enable_gqa=grouped,
        )  # (count, heads, length, dim)
        out[first:last].unflatten(0, (count, length)).copy_(attended.transpose(1, 2))
        first = last
    return out.unsqueeze(0), None
