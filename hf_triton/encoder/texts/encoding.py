"""The model's inputs: the token ids of one text, and padded rows of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

# The model's inputs, in the order of padded_rows.
ROWS = ("input_ids", "attention_mask", "token_type_ids")
_NO_TOKEN = -1  # equal to no token: every token counts, and only texts of one length are batched


@dataclass(frozen=True, eq=False)
class Encoding:
    """One sequence of a forward pass.

    ``token_type_ids`` as long as ``input_ids``, all 0 but for a pair's second text; None where the
    model takes none. ``positions``: the tokens whose outputs are wanted, ascending, where the
    output is per token; None: all. ``num_seen``: how many of its tokens, the first, are seen by its
    tokens; None: all. ``is_cut``: its text was longer. ``wants``: what the task's ``reduce`` makes
    of its output, where that is not the same for all.
    """

    input_ids: list[int]
    token_type_ids: list[int] | None = None
    positions: tuple[int, ...] | None = None
    num_seen: int | None = field(default=None, kw_only=True)
    is_cut: bool = field(default=False, kw_only=True)
    wants: tuple[Any, ...] = field(default=(), kw_only=True)

    def __len__(self) -> int:
        return len(self.input_ids)

    @cached_property
    def inputs(self) -> tuple[Any, ...]:
        """All that its result depends on."""
        types = self.token_type_ids and tuple(self.token_type_ids)
        return tuple(self.input_ids), types, self.positions, self.num_seen, self.wants

    @property
    def num_outputs(self) -> int:
        return len(self.input_ids) if self.positions is None else len(self.positions)

    def of_tokens(self, output: torch.Tensor) -> torch.Tensor:
        """The wanted rows of a padded output: (length, size) -> (num_outputs, size)."""
        return output[: len(self)] if self.positions is None else output[list(self.positions)]


def padded_rows(
    encodings: Sequence[Encoding], length: int, filler: int, num_rows: int = 0
) -> npt.NDArray[np.int64]:
    """ROWS of the encodings, (3, rows, length), padded on the right; with rows of padding alone up
    to ``num_rows``.
    """
    found = np.zeros((len(ROWS), max(num_rows, len(encodings)), length), dtype=np.int64)
    ids, mask, types = found
    ids.fill(filler)
    mask[:, 0] = 1  # with no token at all softmax would give NaN
    for row, encoding in enumerate(encodings):
        end = len(encoding)
        ids[row, :end], mask[row, : encoding.num_seen or end] = encoding.input_ids, 1
        if encoding.token_type_ids is not None:
            types[row, :end] = encoding.token_type_ids
    return found


def padding_filler(config: Any) -> int:
    """The token that batches are filled up with: one that the model has an embedding for."""
    return max(0, getattr(config.get_text_config(), "pad_token_id", None) or 0)


def set_padding(config: Any, tokenizer: Any) -> None:
    """Names a padding token where the configuration names none. A classifier of a decoder's shape
    reads a text's last token that is not padding: so it is one that the tokenizer never makes, else
    the tokenizer's own if that means nothing else.
    """
    config = config.get_text_config()
    if getattr(config, "pad_token_id", None) is not None:
        return
    if config.vocab_size - 1 > max(tokenizer.get_vocab().values(), default=0):
        config.pad_token_id = int(config.vocab_size) - 1
        return
    pad = tokenizer.pad_token_id
    kinds = ("bos", "eos", "unk", "sep", "cls", "mask")
    meaning = {getattr(tokenizer, f"{kind}_token_id", None) for kind in kinds}
    is_free = pad is not None and pad not in meaning and pad < config.vocab_size
    config.pad_token_id = int(pad) if is_free else _NO_TOKEN
