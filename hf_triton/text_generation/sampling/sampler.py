"""Logits to tokens, for a batch in which every sequence has its own options. A seed gives the same
tokens in any batch.

A sequence with drafted tokens has a row for its next token and one for each that follows a drafted
one. Each is sampled by the random number of its own token; those after the first sampled token that
is not the drafted one are dropped, so a draft changes no token. It is speculative sampling
(https://arxiv.org/abs/2211.17192, section 2.3) with all of the draft's probability on one token.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection
from collections.abc import Sequence as Rows
from typing import NamedTuple

import torch

from hf_triton.runtime.devices.device import to_device

from ..forward.transformers.transformers_runner import argmax
from ..sequence.sequence import NO_TOKEN, Sequence, TokenLogprobs
from .logits_processors import LogitsProcessors
from .random_sampling import draw
from .token_logprobs import compute_logprobs, read_logprobs


class Sampled(NamedTuple):
    """A token of each row, or NO_TOKEN; by row, log-probabilities where they are asked for."""

    token_ids: list[int]
    logprobs: dict[int, TokenLogprobs]


class Sampler:
    """``argmax`` is the runner's own, from (rows, vocab) to (rows,) int64."""

    def __init__(
        self,
        eos_token_ids: Rows[int],
        argmax: Callable[[torch.Tensor], torch.Tensor] = argmax,
    ) -> None:
        self._changes = LogitsProcessors(eos_token_ids)
        self._argmax = argmax

    @torch.inference_mode()  # a runner's logits can't be changed in place outside of it
    def sample(
        self,
        logits: torch.Tensor,
        sequences: Rows[Sequence],
        late: Collection[Sequence] = (),
    ) -> Sampled:
        """logits (num_sequences, vocab), any float dtype, may be changed in place. The tokens of
        ``late`` are to be thrown away: their grammars are not waited for.
        """
        raw, best = logits, None
        wanted = ((row, one.params.num_logprobs) for row, one in enumerate(sequences))
        asking = [(row, num) for row, num in wanted if num is not None]
        if any(sequence.params.changes_logits for sequence in sequences):
            best = logits.amax(dim=-1)
            # Small penalties would be rounded away in half precision.
            logits = logits.to(torch.float32, copy=bool(asking))
            self._changes.apply(logits, sequences, late)
        token_ids = self._choose(logits, sequences)
        if best is None:
            best = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1)  # (num_sequences,)
        told = torch.where(best - best == 0, token_ids, NO_TOKEN)  # where none is finite
        if not asking:
            return Sampled(told.tolist(), {})
        numbers = torch.cat([told.int(), compute_logprobs(raw, token_ids, asking)]).cpu().numpy()
        ids = numbers[: len(sequences)].tolist()
        return Sampled(ids, read_logprobs(asking, ids, numbers[len(sequences) :]))

    def _choose(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
        """logits (num_sequences, vocab) -> token ids (num_sequences,)."""
        num_before: dict[Sequence, int] = defaultdict(int)
        drawn = []
        for row, sequence in enumerate(sequences):
            if not sequence.params.is_greedy:
                drawn.append((row, sequence.params, sequence.uniform(num_before[sequence])))
                num_before[sequence] += 1
        if drawn and len(drawn) == len(sequences):
            return draw(logits, drawn)
        token_ids = self._argmax(logits)
        if drawn:
            rows = torch.tensor([row for row, _, _ in drawn])
            token_ids[to_device(rows, logits.device)] = draw(logits, drawn)
        return token_ids


def choice_seed(seed: int | None, index: int) -> int | None:
    """The seed of choice ``index`` of a request; the first choice has the request's own."""
    if seed is None or index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
