"""Grammars to logits: what may not come next gets -inf, in all rows at once."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch

from .grammar import Grammar

_BITS = 32


def hold_to_grammars(logits: torch.Tensor, held: Rows[tuple[int, Grammar]]) -> None:
    """Changes logits (rows, vocab) in place, in the rows that are named; no other is touched."""
    words = torch.empty(len(held), max(grammar.num_words for _, grammar in held), dtype=torch.int32)
    for row, (_, grammar) in zip(words, held, strict=True):
        grammar.fill(row.data_ptr())
    device, vocab_size = logits.device, logits.shape[-1]
    shifts = torch.arange(_BITS, dtype=torch.int32, device=device)
    bits = (words.to(device).unsqueeze(-1) >> shifts).bitwise_and_(1)  # (held, words, 32)
    forbidden = bits.flatten(1)[:, :vocab_size] == 0
    rows = torch.tensor([row for row, _ in held], device=device)
    logits[rows] = logits[rows].masked_fill_(forbidden, float("-inf"))
