"""A model's head without its base model: computed from given hidden states.

Every ``XForY`` of transformers calls its base model and applies its head to the result. Here a
stand-in takes the base model's place and returns given hidden states, so the head's code is the
model's own.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


class Head:
    """The part of ``model`` beyond ``model.base_model``."""

    def __init__(self, model: Any) -> None:
        pad = getattr(model.config.get_text_config(), "pad_token_id", None)
        self._token = 1 if pad == 0 else 0  # none that is taken for padding
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
        """Whether a text's logits come of its last token, as of a decoder, not of its first."""
        draws = torch.Generator().manual_seed(0)
        hidden = torch.randn((1, 2, hidden_size), generator=draws).to(like)
        of_both, of_last = (self(part).logits for part in (hidden, hidden[:, 1:]))
        return bool(torch.equal(of_both, of_last))


class _StandInBody(nn.Module):
    """Stands where the base model stood."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.hidden: torch.Tensor | None = None
        self._pooler = getattr(body, "pooler", None)
        self._activation = getattr(body, "pooler_activation", None)  # ALBERT's is beside

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
