"""One input of the model, as token ids. Knows no tokenizers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Encoding:
    """One sequence of a forward pass.

    ``token_type_ids`` as long as ``input_ids``, all 0 but for a pair's second text, as the
    tokenizer gives them; None where the model takes none. ``positions``: the tokens whose outputs
    are wanted, ascending, where the output is per token; None: all. ``is_cut``: its text was
    longer.
    """

    input_ids: list[int]
    token_type_ids: list[int] | None = None
    positions: tuple[int, ...] | None = None
    is_cut: bool = field(default=False, kw_only=True)

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def num_outputs(self) -> int:
        """How many tokens' outputs are wanted."""
        return len(self.input_ids) if self.positions is None else len(self.positions)

    def of_tokens(self, output: torch.Tensor) -> torch.Tensor:
        """The wanted rows of a padded output: (length, size) -> (num_outputs, size)."""
        return output[: len(self)] if self.positions is None else output[list(self.positions)]
