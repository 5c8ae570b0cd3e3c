"""Computes a batch as one forward of packed tokens, without padding.

For models that use transformers' attention interface. A model that mixes tokens outside of
attention (such as by convolutions) would mix texts: the trial at load detects that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch

from ..texts.encoding import Encoding
from .head import Head
from .packed_attention import ATTENTION_NAME, PackedRow, attending, register
from .runner import Runner, RunnerSetup, output_of


class PackedRunner(Runner):
    """Gives the model its attention function: until ``close`` it is for this runner alone."""

    name = "packed tokens"

    def __init__(self, setup: RunnerSetup) -> None:
        super().__init__(setup)
        model = setup.model
        if not getattr(model, "_supports_attention_backend", False):
            raise TypeError("the model does not use transformers' attention interface")
        self._body = model.base_model
        self._head = None if setup.output == "hidden" else Head(model)
        self._first_position = first_position(model)
        self._arange = torch.arange(
            self._first_position, self._first_position + setup.max_length, device=setup.device
        )
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

    @torch.inference_mode()
    def forward(self, batch: Sequence[Encoding]) -> list[torch.Tensor]:
        order = sorted(range(len(batch)), key=lambda index: len(batch[index]))
        row = [batch[index] for index in order]
        with attending(PackedRow([len(encoding) for encoding in row])):
            hidden = self._body(**self._inputs(row), **self._options).last_hidden_state
            outputs = self._outputs(hidden, row)
        found: list[torch.Tensor] = [hidden] * len(batch)
        for index, output in zip(order, outputs, strict=True):
            found[index] = output
        return found

    def _inputs(self, row: Sequence[Encoding]) -> dict[str, torch.Tensor]:
        device = self.setup.device
        ids = [list(chain.from_iterable(encoding.input_ids for encoding in row))]
        inputs = {
            "input_ids": torch.tensor(ids, device=device),
            "position_ids": torch.cat([self._arange[: len(e)] for e in row]).unsqueeze(0),
        }
        if self.setup.has_token_types:
            types = [e.token_type_ids or [0] * len(e) for e in row]
            inputs["token_type_ids"] = torch.tensor(
                [list(chain.from_iterable(types))], device=device
            )
        return inputs

    def _outputs(self, hidden: torch.Tensor, row: Sequence[Encoding]) -> Any:
        """hidden (1, num_tokens, size) -> each encoding's output, in the row's order."""
        if self.setup.output == "sequences":
            assert self._head is not None
            firsts = [0]
            for encoding in row[:-1]:
                firsts.append(firsts[-1] + len(encoding))
            return output_of(self.setup, self._head(hidden[0, firsts].unsqueeze(1))).unbind()
        if any(encoding.positions is not None for encoding in row):
            hidden = hidden[:, wanted_tokens(row)]
        found = hidden if self._head is None else output_of(self.setup, self._head(hidden))
        return found[0].split([encoding.num_outputs for encoding in row])


def wanted_tokens(row: Sequence[Encoding]) -> list[int]:
    """Where in the packed row the tokens are whose outputs are wanted."""
    found: list[int] = []
    first = 0
    for encoding in row:
        places = range(len(encoding)) if encoding.positions is None else encoding.positions
        found += [first + place for place in places]
        first += len(encoding)
    return found


def first_position(model: Any) -> int:
    """The position of a text's first token: RoBERTa's kind counts from behind the padding id."""
    for module in model.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, torch.nn.Embedding):
            return 0 if table.padding_idx is None else table.padding_idx + 1
    return 0
