"""Log-probabilities of sampled tokens and of a prompt's: those of the model's own logits, before
penalties, temperature and filters, as in vLLM. ``asking`` are the rows of a batch that ask for
them, each with the number of likeliest tokens that it wants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows

import numpy as np
import numpy.typing as npt
import torch

from hf_triton.runtime.devices.device import to_device

from ..sequence.sequence import LEAST_LOGPROB, TokenLogprobs

# The most logits that are copied at once: 32 MiB in float32.
MOST_LOGITS = 2**23


def compute_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, asking: Rows[tuple[int, int]]
) -> torch.Tensor:
    """logits (num_sequences, vocab) as the model made them, token_ids (num_sequences,) -> what
    ``read_logprobs`` takes, (numbers,) int32, some of them the bits of float32.
    """
    rows = to_device(torch.tensor([row for row, _ in asking]), logits.device)
    parts = rows.split(max(1, MOST_LOGITS // logits.shape[-1]))
    most = max(num for _, num in asking)
    return torch.cat([_computed(logits[part], token_ids[part], most) for part in parts]).flatten()


def read_logprobs(
    asking: Rows[tuple[int, int]], token_ids: list[int], numbers: npt.NDArray[np.int32]
) -> dict[int, TokenLogprobs]:
    """The log-probabilities of the rows that ask, by row. ``compute_logprobs`` made ``numbers``."""
    table = numbers.reshape(len(asking), -1)
    floats, width = table.view(np.float32), table.shape[1] // 2 - 1
    columns = zip(
        asking,
        floats[:, 0].tolist(),
        table[:, 1].tolist(),
        table[:, 2 : 2 + width].tolist(),
        floats[:, 2 + width :].tolist(),
        strict=True,
    )
    found = {}
    for (row, num), logprob, rank, ids, top in columns:
        others = alternatives(ids[:num], top[:num], token_ids[row])
        # NaN stays: a caller looks for it.
        found[row] = TokenLogprobs(max(logprob, LEAST_LOGPROB), rank, others)
    return found


@torch.inference_mode()
def prompt_logprobs(logits: torch.Tensor, token_ids: list[int], num: int) -> list[TokenLogprobs]:
    """logits (tokens, vocab) before each of the tokens; waits for the device."""
    asking = [(row, num) for row in range(len(token_ids))]
    numbers = compute_logprobs(logits, torch.tensor(token_ids, device=logits.device), asking)
    return list(read_logprobs(asking, token_ids, numbers.cpu().numpy()).values())


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
