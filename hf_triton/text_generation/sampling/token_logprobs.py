"""Log-probabilities of tokens: of sampled ones, for the rows of a batch that ask for them, and of a
prompt's.

They are those of the model's own logits, before penalties, temperature and filters, as in vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows

import numpy as np
import numpy.typing as npt
import torch

from hf_triton.runtime.devices.device import to_device

from ..sequence.sequence import LEAST_LOGPROB, TokenLogprobs

# What is computed from at once where copies of it are made: 32 MiB in float32.
MOST_LOGITS = 2**23


class Asked:
    """The rows of a step that ask, and how many of the likeliest tokens each wants."""

    def __init__(self, asking: Rows[tuple[int, int]]) -> None:
        """``asking`` are (row, how many), at least one."""
        self.rows = [row for row, _ in asking]
        self.nums = [num for _, num in asking]

    def compute(self, logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """logits (num_sequences, vocab) as the model made them, token_ids (num_sequences,) -> what
        ``read`` takes, (numbers,) int32, some of them the bits of float32.
        """
        parts = to_device(torch.tensor(self.rows), logits.device).split(_rows_at_once(logits))
        found = [_computed(logits[rows], token_ids[rows], max(self.nums)) for rows in parts]
        return torch.cat(found).flatten()

    def read(
        self, token_ids: list[int], numbers: npt.NDArray[np.int32]
    ) -> dict[int, TokenLogprobs]:
        """By row, for the rows that ask; ``numbers`` (numbers,) are what ``compute`` gave."""
        table = numbers.reshape(len(self.rows), -1)
        found = _read(table, [token_ids[row] for row in self.rows], self.nums)
        return dict(zip(self.rows, found, strict=True))


@torch.inference_mode()
def prompt_logprobs(logits: torch.Tensor, token_ids: list[int], num: int) -> list[TokenLogprobs]:
    """logits (tokens, vocab) before each of the tokens; ``num`` of the likeliest others. Waits for
    the device.
    """
    at_once = _rows_at_once(logits)
    ids = torch.tensor(token_ids, device=logits.device)
    parts = zip(logits.split(at_once), ids.split(at_once), strict=True)
    table = torch.cat([_computed(*part, num) for part in parts]).cpu().numpy()
    return _read(table, token_ids, [num] * len(token_ids))


def _rows_at_once(logits: torch.Tensor) -> int:
    return max(1, MOST_LOGITS // logits.shape[-1])


def _computed(logits: torch.Tensor, token_ids: torch.Tensor, num: int) -> torch.Tensor:
    """logits (rows, vocab), token_ids (rows,) -> (rows, 2 + 2 num) int32: the token's
    log-probability and rank, the likeliest tokens, theirs.
    """
    logprobs = logits.log_softmax(dim=-1, dtype=torch.float32)  # (rows, vocab)
    own = logprobs.gather(1, token_ids.unsqueeze(1))  # (rows, 1)
    ranks = 1 + (logprobs > own).sum(dim=-1, keepdim=True)
    top = logprobs.topk(min(num, logits.shape[-1]), dim=-1)
    bits = torch.int32
    columns = own.view(bits), ranks.int(), top.indices.int(), top.values.view(bits)
    return torch.cat(columns, dim=1)


def _read(
    table: npt.NDArray[np.int32], token_ids: list[int], nums: list[int]
) -> list[TokenLogprobs]:
    """What ``_computed`` gave of these tokens, each with as many alternatives as in ``nums``."""
    width = table.shape[1] // 2 - 1
    columns = zip(
        token_ids,
        nums,
        table.view(np.float32)[:, 0].tolist(),
        table[:, 1].tolist(),
        table[:, 2 : 2 + width].tolist(),
        table.view(np.float32)[:, 2 + width :].tolist(),
        strict=True,
    )
    return [
        # NaN stays: who asks for the numbers looks for it.
        TokenLogprobs(
            max(logprob, LEAST_LOGPROB), rank, alternatives(ids[:num], top[:num], token_id)
        )
        for token_id, num, logprob, rank, ids, top in columns
    ]


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
