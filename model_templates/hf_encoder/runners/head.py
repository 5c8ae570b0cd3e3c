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
        ids = torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)
        try:
            return self._model(input_ids=ids)
        finally:
            self._body.hidden = None


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
