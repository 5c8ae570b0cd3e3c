"""Computes a batch as one forward of packed tokens, without padding.

For models that use transformers' attention interface. A model that mixes tokens outside of
attention (such as by convolutions) would mix texts: the trial at load detects that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

from ..texts.encoding import Encoding
from .packed_attention import ATTENTION_NAME, PackedRow, attending, register
from .packed_rows import PackedRows
from .runner import RunnerSetup, check_rotation


class PackedRunner(PackedRows):
    """Gives the model its attention function: until ``close`` it is for this runner alone."""

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
        self._options = {"use_cache": False} if getattr(model.config, "use_cache", False) else {}
        register()
        # model.set_attn_implementation refuses models without an attention implementation of this
        # name. Set once, not for each forward: that took 15 % of a short one.
        configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
        self._before = [(config, config._attn_implementation) for config in configs.values()]  # noqa: SLF001
        for config, _ in self._before:
            config._attn_implementation = ATTENTION_NAME  # noqa: SLF001

    def close(self) -> None:
        for config, name in self._before:
            config._attn_implementation = name  # noqa: SLF001

    def _inputs(self, row: Sequence[Encoding]) -> dict[str, torch.Tensor]:
        """What the model takes of a row, (1, num_tokens) int64 each."""
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
        with attending(PackedRow([len(encoding) for encoding in row])):
            found = self._body(**self._inputs(row), **self._options)
        hidden: torch.Tensor = found.last_hidden_state[0]
        return hidden if wanted is None else hidden[wanted]
