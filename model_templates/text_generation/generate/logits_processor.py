"""The logits processor and stopping criteria by which ``model.generate`` uses our sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import LogitsProcessor, StoppingCriteria

from ..sampling.sampler import Sampler
from ..sequence.sequence import Sequence, Token, TokenLogprobs


class SamplingProcessor(LogitsProcessor):
    """Samples a token for each row, and forbids ``generate`` all others.

    ``last_token_id`` is forced as a row's last token where the model wants one (BART's
    ``forced_eos_token_id``, which ``generate`` would force at the end of the longest row only);
    ``first_token_id`` is one that ``generate`` forces as each row's first.
    """

    first_token_id: int | None = None
    last_token_id: int | None = None

    def __init__(
        self,
        batch: list[Sequence],
        sampler: Sampler,
        eos_token_ids: frozenset[int],
        pad_token_id: int,
        chosen: Callable[[list[Sequence]], None],
    ) -> None:
        self.batch, self.sampler, self.chosen = batch, sampler, chosen
        self.eos_token_ids, self.pad_token_id = eos_token_ids, pad_token_id

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """scores (batch, vocab) -> the same shape, 0 at each row's token and -inf elsewhere."""
        rows = [row for row, sequence in enumerate(self.batch) if sequence.finish_reason is None]
        token_ids = [self.pad_token_id] * len(self.batch)
        sequences = [self.batch[row] for row in rows]
        tokens = self.sampler.sample(scores[rows], sequences) if rows else []
        for row, token in zip(rows, tokens, strict=True):
            token_ids[row] = self._append(self.batch[row], token)
        self.chosen(sequences)
        chosen = torch.full_like(scores, float("-inf"))
        chosen[torch.arange(len(self.batch)), token_ids] = 0
        return chosen

    def _append(self, sequence: Sequence, sampled: Token) -> int:
        """Appends the sampled token, or the one that is forced here; returns its id."""
        if self.last_token_id is not None and sequence.num_tokens_left == 1:
            token = _certain(self.last_token_id, sequence)
            sequence.append(token, frozenset(), is_forced=True)
        elif not sequence.token_ids and (first := self._first_of(sequence)) is not None:
            sequence.append(_certain(first, sequence), self.eos_token_ids, is_forced=True)
        else:
            sequence.append(sampled, self.eos_token_ids)
        return sequence.last_token_id

    def _first_of(self, sequence: Sequence) -> int | None:
        own = forced_first_token_id(sequence)
        return self.first_token_id if own is None else own


class Finished(StoppingCriteria):
    """Each row ends when its own sequence does; a row may have several beams."""

    def __init__(self, batch: list[Sequence]) -> None:
        self.batch = batch

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """input_ids (batch x beams, length) -> (batch x beams,) bool: the rows that are done."""
        done = [sequence.finish_reason is not None for sequence in self.batch]
        beams = input_ids.shape[0] // len(self.batch)
        return torch.tensor(done, device=input_ids.device).repeat_interleave(beams)


def forced_first_token_id(sequence: Sequence) -> int | None:
    """The token that a sequence's output has to begin with, if any."""
    return None if sequence.decoder_start is None else sequence.decoder_start.forced_token_id


def decoder_starts(batch: list[Sequence]) -> dict[str, list[int]]:
    """What gives each row of a batch its own start, in the names of a generation config."""
    starts = [s.decoder_start.token_id for s in batch if s.decoder_start is not None]
    return {"decoder_start_token_id": starts} if starts else {}


def _certain(token_id: int, sequence: Sequence) -> Token:
    """A forced token, of probability 1."""
    wants_logprobs = sequence.params.num_logprobs is not None
    return Token(token_id, TokenLogprobs(0.0, 1) if wants_logprobs else None)
