"""Logits to tokens, for a batch in which every sequence has its own options.

A batch of plain greedy sequences costs one argmax. A sequence's options change its own tokens
only, and a seed gives the same tokens in any batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Sequence as Rows

import torch

from ..sequence.sequence import Sequence, Token
from .logits_processors import LogitsProcessors
from .random_sampling import sample_rows
from .token_logprobs import RawLogprobs


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """logits (rows, vocab) -> the first of the largest in each row, (rows,) int64."""
    return logits.argmax(dim=-1)


class Sampler:
    """Samples one token per sequence. ``eos_token_ids`` are forbidden until a sequence has its
    min_tokens; ``argmax`` is the runner's own, from (rows, vocab) to (rows,) int64.
    """

    def __init__(
        self,
        eos_token_ids: Rows[int],
        argmax: Callable[[torch.Tensor], torch.Tensor] = argmax,
    ) -> None:
        self._changes = LogitsProcessors(eos_token_ids)
        self._argmax = argmax

    @torch.inference_mode()  # a runner's logits can't be changed in place outside of it
    def sample(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> list[Token]:
        """logits (num_sequences, vocab), any float dtype, may be changed in place -> one token
        each.
        """
        raw = RawLogprobs(logits, sequences)
        logits = self._changes.apply(logits, sequences)
        token_ids = self._argmax(logits)  # (num_sequences,)
        sampled_rows = [
            row for row, sequence in enumerate(sequences) if not sequence.params.is_greedy
        ]
        if sampled_rows:
            rows = torch.tensor(sampled_rows, device=logits.device)
            token_ids[rows] = sample_rows(logits[rows], [sequences[row] for row in sampled_rows])
        logprobs = raw.of(token_ids)
        return [Token(id_, logprobs.get(row)) for row, id_ in enumerate(token_ids.tolist())]

    def forget(self, sequence: Sequence) -> None:
        """Drops what is kept for a finished sequence."""
        self._changes.forget(sequence)


def choice_seed(seed: int | None, index: int) -> int | None:
    """The seed of choice ``index`` (from 0) of a request with this seed. The first choice has the
    request's own seed, so that its text does not depend on n.
    """
    if seed is None or index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
