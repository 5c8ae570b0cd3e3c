"""Chooses the padding token of a model whose configuration names none.

A classifier of a decoder's shape reads a text's last token that is not padding, and takes no batch
where it does not know which token that is.
"""

from __future__ import annotations

from typing import Any

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
