"""Log-probabilities of sampled tokens, for the rows of a batch that ask for them.

They are those of the model's own logits, before penalties, temperature and filters, as in vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..sequence.sequence import Sequence, TokenLogprobs
from .columns import Column, Columns, DeviceColumns


@dataclass(frozen=True)
class Asked:
    """Which rows of a step ask, and how many of the likeliest tokens each wants."""

    rows: list[int]
    nums: list[int]
    column: Column  # the rows

    @classmethod
    def of(cls, sequences: Rows[Sequence], columns: Columns) -> Asked | None:
        """None where none asks."""
        asking = [
            (row, s.params.num_logprobs)
            for row, s in enumerate(sequences)
            if s.params.num_logprobs is not None
        ]
        if not asking:
            return None
        rows = [row for row, _ in asking]
        return cls(rows, [num for _, num in asking], columns.ints(rows))

    def compute(
        self, logits: torch.Tensor, token_ids: torch.Tensor, values: DeviceColumns
    ) -> list[torch.Tensor]:
        """logits (num_sequences, vocab) as the model made them, token_ids (num_sequences,) -> what
        ``read`` takes, int32, some of them the bits of float32.
        """
        rows = values[self.column]
        logprobs = logits[rows].float().log_softmax(dim=-1)  # (asking, vocab)
        sampled = logprobs.gather(1, token_ids[rows].unsqueeze(1))  # (asking, 1)
        ranks = 1 + (logprobs > sampled).sum(dim=-1)
        top = logprobs.topk(min(max(self.nums), logits.shape[-1]), dim=-1)
        return [
            sampled.view(torch.int32).flatten(),
            ranks.int(),
            top.indices.int().flatten(),
            top.values.view(torch.int32).flatten(),
        ]

    def read(
        self, token_ids: list[int], numbers: npt.NDArray[np.int32]
    ) -> dict[int, TokenLogprobs]:
        """By row, for the rows that ask; ``numbers`` are what ``compute`` gave, joined."""
        num = len(self.rows)
        width = len(numbers) // num // 2 - 1
        logprobs, ranks = numbers[:num].view(np.float32), numbers[num : 2 * num]
        ids, values = numbers[2 * num :].reshape(2, num, width)
        columns = zip(
            self.rows,
            self.nums,
            logprobs.tolist(),
            ranks.tolist(),
            ids.tolist(),
            values.view(np.float32).tolist(),
            strict=True,
        )
        return {
            row: TokenLogprobs(
                logprob, rank, alternatives(top_ids[:most], top[:most], token_ids[row])
            )
            for row, most, logprob, rank, top_ids, top in columns
        }


def alternatives(
    token_ids: list[int], logprobs: list[float], sampled_id: int
) -> tuple[tuple[int, float, int], ...]:
    """(token_id, logprob, rank) of the likeliest tokens but the sampled one. Equal ones share a
    rank; tokens of probability 0 are left out.
    """
    return tuple(
        (token_id, logprob, 1 + logprobs.index(logprob))
        for token_id, logprob in zip(token_ids, logprobs, strict=True)
        if token_id != sampled_id and math.isfinite(logprob)
    )
