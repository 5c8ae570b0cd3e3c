"""Log-probabilities of sampled tokens, for the rows of a batch that ask for them.

They are those of the model's own logits, before penalties, temperature and filters, as in vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows

import torch

from ..sequence.sequence import Sequence, TokenLogprobs


class RawLogprobs:
    """Taken before logits are changed; read when the tokens are known."""

    def __init__(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> None:
        """logits (num_sequences, vocab)."""
        asking = [row for row, s in enumerate(sequences) if s.params.num_logprobs is not None]
        self._num = [sequences[row].params.num_logprobs or 0 for row in asking]
        self._rows = asking
        if asking:
            chosen = logits[torch.tensor(asking, device=logits.device)]
            self._logprobs = chosen.float().log_softmax(dim=-1)  # (asking, vocab)

    def of(self, token_ids: torch.Tensor) -> dict[int, TokenLogprobs]:
        """token_ids (num_sequences,) -> by row, for the rows that ask."""
        if not self._rows:
            return {}
        rows = torch.tensor(self._rows, device=token_ids.device)
        sampled_ids = token_ids[rows].unsqueeze(1)
        sampled = self._logprobs.gather(1, sampled_ids)  # (asking, 1)
        ranks = 1 + (self._logprobs > sampled).sum(dim=-1)
        width = min(max(self._num), self._logprobs.shape[-1])
        top = self._logprobs.topk(width, dim=-1)
        columns = zip(
            self._rows,
            self._num,
            sampled_ids.squeeze(1).tolist(),
            sampled.squeeze(1).tolist(),
            ranks.tolist(),
            top.indices.tolist(),
            top.values.tolist(),
            strict=True,
        )
        return {
            row: TokenLogprobs(logprob, rank, alternatives(ids[:num], values[:num], token_id))
            for row, num, token_id, logprob, rank, ids, values in columns
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
