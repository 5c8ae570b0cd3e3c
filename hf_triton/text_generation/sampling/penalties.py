"""Repetition, frequency and presence penalties (CTRL, https://arxiv.org/abs/1909.05858, 4.1, then
OpenAI's).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Rows

import numpy as np
import torch

from hf_triton.runtime.devices.device import to_device

from ..sequence.sequence import Sequence

_LARGEST = 3e38  # a penalty beyond this would be infinite in float32


class PenalisedTokens:
    """The different tokens of one sequence that penalties look at, and how often each stands in the
    output.
    """

    def __init__(self, sequence: Sequence) -> None:
        penalises_prompt = sequence.params.repetition_penalty != 1
        self.sequence = sequence
        self.token_ids = array("i", set(sequence.prompt_token_ids if penalises_prompt else ()))
        self.counts = array("f", bytes(4 * len(self.token_ids)))
        self._places = {token: place for place, token in enumerate(self.token_ids)}
        self._num_counted = 0  # tokens of the output

    def count_new(self) -> None:
        """Counts the tokens of the output since the last call."""
        for token in self.sequence.token_ids[self._num_counted :]:
            place = self._places.setdefault(token, len(self.counts))
            if place == len(self.counts):
                self.token_ids.append(token)
                self.counts.append(0)
            self.counts[place] += 1
        self._num_counted = len(self.sequence.token_ids)


def apply_penalties(logits: torch.Tensor, penalised: Rows[tuple[int, PenalisedTokens]]) -> None:
    """Changes float32 logits (rows, vocab) in place; ``penalised`` are (row, its tokens)."""
    for _, tokens in penalised:
        tokens.count_new()
    sizes = [len(tokens.token_ids) for _, tokens in penalised]
    if not any(sizes):
        return
    rows = np.repeat(np.array([row for row, _ in penalised], np.int32), sizes)
    token_ids = np.concatenate([tokens.token_ids for _, tokens in penalised])
    all_params = [tokens.sequence.params for _, tokens in penalised]
    penalties = [
        (p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in all_params
    ]
    each = np.repeat(np.clip(penalties, -_LARGEST, _LARGEST).astype(np.float32), sizes, axis=0)
    counted = np.concatenate([tokens.counts for _, tokens in penalised])
    numbers = np.column_stack([each, counted])  # (tokens of all rows, 4)
    device = logits.device
    places = to_device(torch.from_numpy(np.stack([rows, token_ids])), device).long().unbind()
    repetition, frequency, presence, counts = to_device(torch.from_numpy(numbers), device).unbind(1)
    scores = logits[places]
    changed = torch.where(scores < 0, scores * repetition, scores / repetition)
    changed -= frequency * counts + presence * (counts > 0)
    logits.index_put_(places, changed.nan_to_num_(nan=0))  # however large a penalty, finite
