"""The base of runners that pack a batch's texts into one row, without padding."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..texts.encoding import Encoding
from .runner import Runner, RunnerSetup, output_of


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
        order = sorted(range(len(batch)), key=lambda index: len(batch[index]))
        row = [batch[index] for index in order]
        outputs = self._outputs(self.hidden(row, self._wanted(row)), row)
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

    def _wanted(self, row: Sequence[Encoding]) -> list[int] | None:
        """The tokens whose outputs are wanted; None for all."""
        if self.setup.output == "sequences":
            firsts = accumulate(map(len, row[:-1]), initial=0)
            return [first + self._read(one) for first, one in zip(firsts, row, strict=True)]
        has_some = any(encoding.positions is not None for encoding in row)
        return wanted_tokens(row) if has_some else None

    def _read(self, encoding: Encoding) -> int:
        """The token whose output gives a text's logits: the first, or the last that is
        not padding.
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


def wanted_tokens(row: Sequence[Encoding]) -> list[int]:
    """The indexes in the packed row of the tokens whose outputs are wanted."""
    found: list[int] = []
    first = 0
    for encoding in row:
        places = range(len(encoding)) if encoding.positions is None else encoding.positions
        found += [first + place for place in places]
        first += len(encoding)
    return found


def first_position(model: Any) -> int:
    """The position of a text's first token: RoBERTa's kind starts behind the padding id."""
    for module in model.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, torch.nn.Embedding):
            return 0 if table.padding_idx is None else table.padding_idx + 1
    return 0


class Head:
    """The part of ``model`` beyond ``model.base_model``.

    Every ``XForY`` of transformers calls its base model and applies its head to the result. Here a
    stand-in takes the base model's place and returns given hidden states, so the head's code is the
    model's own.
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
        """Whether the logits come from a text's last token (as in decoders), not its first."""
        draws = torch.Generator().manual_seed(0)
        hidden = torch.randn((1, 2, hidden_size), generator=draws).to(like)
        of_both, of_last = (self(part).logits for part in (hidden, hidden[:, 1:]))
        return bool(torch.equal(of_both, of_last))


class _StandInBody(nn.Module):
    """Stands in for the base model and returns given hidden states."""

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
