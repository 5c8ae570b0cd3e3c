"""Logits to tokens, for a batch in which every sequence has its own options.

Order of the steps, as in transformers' and vLLM's: repetition penalty, min_tokens, temperature,
top-k, top-p, draw. A batch of plain greedy sequences pays for one argmax. A draw takes one uniform
number from the sequence's own generator and inverts the cumulative distribution, so a seed gives
the same tokens in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch

from .sequence import Sequence

_NEVER = float("-inf")
_TOPK_FASTER_THAN_SORT = 1024


class Sampler:
    """Samples one token per sequence. ``eos_token_ids`` are withheld until a sequence has its
    min_tokens.
    """

    def __init__(self, eos_token_ids: Rows[int]) -> None:
        self._eos_token_ids = list(eos_token_ids)
        self._seen: dict[Sequence, torch.Tensor] = {}

    @torch.inference_mode()  # a runner's logits can't be changed in place outside of it
    def sample(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> list[int]:
        """logits (num_sequences, vocab), any float dtype, may be changed in place -> one token id
        each.
        """
        logits = self._penalise(logits, sequences)
        tokens = logits.argmax(dim=-1)  # (num_sequences,)
        drawn = [row for row, sequence in enumerate(sequences) if not sequence.params.is_greedy]
        if drawn:
            rows = torch.tensor(drawn, device=logits.device)
            tokens[rows] = _draw(logits[rows], [sequences[row] for row in drawn])
        token_ids: list[int] = tokens.tolist()
        self._remember(sequences, token_ids)
        return token_ids

    def forget(self, sequence: Sequence) -> None:
        """Drops what is kept for a finished sequence."""
        self._seen.pop(sequence, None)

    def _penalise(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
        for row, sequence in enumerate(sequences):
            penalty = sequence.params.repetition_penalty
            if penalty != 1.0:
                seen = self._seen_tokens(sequence, logits)
                scores = logits[row]
                penalised = torch.where(scores < 0, scores * penalty, scores / penalty)
                logits[row] = torch.where(seen, penalised, scores)
            if len(sequence.token_ids) < sequence.params.min_tokens:
                logits[row, self._eos_token_ids] = _NEVER
        return logits

    def _seen_tokens(self, sequence: Sequence, logits: torch.Tensor) -> torch.Tensor:
        """(vocab,) bool: the tokens of prompt and output (CTRL, https://arxiv.org/abs/1909.05858,
        4.1).
        """
        if sequence not in self._seen:
            seen = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
            seen[sequence.penalised_token_ids] = True
            self._seen[sequence] = seen
        return self._seen[sequence]

    def _remember(self, sequences: Rows[Sequence], token_ids: list[int]) -> None:
        if self._seen:
            for sequence, token_id in zip(sequences, token_ids, strict=True):
                if sequence in self._seen:
                    self._seen[sequence][token_id] = True


@dataclass(frozen=True)
class _Filters:
    """top_k and top_p of some rows, one element a row; off is the vocabulary's size and 1."""

    top_k: torch.Tensor  # (rows, 1) int64
    top_p: torch.Tensor  # (rows, 1) float32
    widest: int


def _draw(logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
    """logits (rows, vocab) -> token ids (rows,)."""
    device = logits.device
    temperatures = torch.tensor([s.params.temperature for s in sequences], device=device)
    temperature = temperatures.clamp(1e-5, 1e30).unsqueeze(1)  # (rows, 1)
    uniform = torch.tensor([s.random.random() for s in sequences], device=device)
    scores = logits.float()
    # The largest score is 0 before the division: a tiny temperature gives -inf, never inf or NaN.
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / temperature
    tokens = torch.empty(len(sequences), dtype=torch.int64, device=device)
    filtered = [row for row, sequence in enumerate(sequences) if sequence.params.filters]
    plain = [row for row, sequence in enumerate(sequences) if not sequence.params.filters]
    if plain:
        rows = torch.tensor(plain, device=device)
        tokens[rows] = _invert(scores[rows].softmax(dim=-1), uniform[rows])
    if filtered:
        rows = torch.tensor(filtered, device=device)
        filters = _filters([sequences[row] for row in filtered], scores.shape[-1], device)
        tokens[rows] = _draw_filtered(scores[rows], filters, uniform[rows])
    return tokens


def _filters(sequences: Rows[Sequence], vocab_size: int, device: torch.device) -> _Filters:
    top_k = [
        min(s.params.top_k, vocab_size) if s.params.top_k > 0 else vocab_size for s in sequences
    ]
    top_p = [s.params.top_p if 0 < s.params.top_p < 1 else 1.0 for s in sequences]
    return _Filters(
        torch.tensor(top_k, device=device).unsqueeze(1),
        torch.tensor(top_p, device=device).unsqueeze(1),
        max(top_k),
    )


def _draw_filtered(scores: torch.Tensor, filters: _Filters, uniform: torch.Tensor) -> torch.Tensor:
    """Top-k, then top-p over what is left (https://arxiv.org/abs/1904.09751), then the draw."""
    if filters.widest <= _TOPK_FASTER_THAN_SORT:
        scores, token_ids = scores.topk(filters.widest, dim=-1)
    else:
        scores, token_ids = scores.sort(dim=-1, descending=True)
    rank = torch.arange(scores.shape[-1], device=scores.device)  # (width,)
    probabilities = scores.masked_fill(rank >= filters.top_k, _NEVER).softmax(dim=-1)
    # A token stays while the mass before it is below top_p: the likeliest one always does.
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill(mass_before >= filters.top_p, 0)
    column = _invert(probabilities, uniform)
    return token_ids.gather(1, column.unsqueeze(1)).squeeze(1)


def _invert(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first column whose cumulative mass exceeds ``uniform`` (rows,) of the row's mass; never
    one of mass 0.
    """
    cumulative = probabilities.cumsum(dim=-1)
    threshold = uniform.unsqueeze(1) * cumulative[:, -1:]
    column = torch.searchsorted(cumulative, threshold, right=True)
    last = (probabilities > 0).to(torch.int8).cumsum(dim=-1, dtype=torch.int32).argmax(dim=-1)
    return torch.minimum(column.squeeze(1), last)
