"""Pads rows of tokens, and chooses the padding token of a model whose configuration names none.

A classifier of a decoder's shape reads a text's last token that is not padding, and takes no batch
where it does not know which token that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .encoding import Encoding

# The model's inputs, in the order of padded_rows.
ROWS = ("input_ids", "attention_mask", "token_type_ids")
_NEVER = -1  # equal to no token: every token counts, and only texts of one length go together


def set_padding(config: Any, tokenizer: Any) -> None:
    """Names a padding token that no text has, so that a text's last token is always read."""
    text_config = config.get_text_config()
    if getattr(text_config, "pad_token_id", None) is None:
        text_config.pad_token_id = _padding(text_config, tokenizer)


def padding_filler(config: Any) -> int:
    """The token that batches are filled up with: one that the model has an embedding for."""
    return max(0, getattr(config.get_text_config(), "pad_token_id", None) or 0)


def _padding(config: Any, tokenizer: Any) -> int:
    """A token that the tokenizer never makes, else its own for padding if it means nothing else."""
    if config.vocab_size - 1 > max(tokenizer.get_vocab().values(), default=0):
        return int(config.vocab_size) - 1
    pad = tokenizer.pad_token_id
    kinds = ("bos", "eos", "unk", "sep", "cls", "mask")
    meaning = {getattr(tokenizer, f"{kind}_token_id", None) for kind in kinds}
    return _NEVER if pad is None or pad in meaning or pad >= config.vocab_size else int(pad)


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
        ids[row, :end], mask[row, :end] = encoding.input_ids, 1
        if encoding.token_type_ids is not None:
            types[row, :end] = encoding.token_type_ids
    return found
