"""The logits processors: what the options of sequences change in their logits before a token is
chosen. Biases, penalties, bad words, ends of text that are forbidden until min_tokens, grammars.

In transformers' and vLLM's order. All rows' changes go to the device together, as a few lists of
(row, token), so rows without such options cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..sequence.sequence import Sequence
from ..structured.grammar import Grammar

_MINUS_INFINITY = float("-inf")
_LARGEST = 3e38  # a penalty beyond this would be infinite in float32
_BITS = 32
_Ids = npt.NDArray[np.int64]


class LogitsProcessors:
    """Changes the logits of a batch; keeps what it needs of each sequence until ``forget``."""

    def __init__(self, eos_token_ids: Rows[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._changes: dict[Sequence, _SequenceProcessors] = {}

    def apply(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
        """logits (rows, vocab) -> the same, changed in place; float32 where a row changes at all,
        as half precision would round small penalties away.
        """
        changing = [row for row, s in enumerate(sequences) if s.params.changes_logits]
        if not changing:
            return logits
        logits = logits.float()
        changes = [(row, self._of(sequences[row], logits.shape[-1])) for row in changing]
        _add_biases(logits, changes)
        _penalise(logits, changes)
        _forbid(logits, changes)
        constrained = [(row, s.grammar) for row, s in enumerate(sequences) if s.grammar is not None]
        if constrained:
            mask_by_grammars(logits, constrained)
        return logits

    def forget(self, sequence: Sequence) -> None:
        """Drops what is kept for a finished sequence."""
        self._changes.pop(sequence, None)

    def _of(self, sequence: Sequence, vocab_size: int) -> _SequenceProcessors:
        changes = self._changes.get(sequence)
        if changes is None:
            changes = _SequenceProcessors(sequence, self._eos_token_ids, vocab_size)
            self._changes[sequence] = changes
        return changes


class _SequenceProcessors:
    """What one sequence's options change."""

    def __init__(self, sequence: Sequence, eos_token_ids: tuple[int, ...], vocab_size: int) -> None:
        params = sequence.params
        biases = [(token, bias) for token, bias in params.logit_bias if token < vocab_size]
        self.biased = np.array([token for token, _ in biases], dtype=np.int64)
        self.biases = np.array([bias for _, bias in biases], dtype=np.float32)
        self.params = params
        self.counts = _Counts(sequence) if params.penalises else None
        ends = (*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids))
        self._ends = [token for token in ends if token < vocab_size]
        self._sequence = sequence
        self._bad_words = _BadWords(params.bad_token_ids, eos_token_ids, vocab_size)

    def forbidden(self) -> list[int]:
        """The tokens that must not come next."""
        sequence = self._sequence
        forbidden_ends = self._ends if len(sequence.token_ids) < self.params.min_tokens else []
        return forbidden_ends + self._bad_words.completions(sequence)


class _Counts:
    """The tokens that a sequence's penalties look at, and how often the output has each."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        params = sequence.params
        penalises_before = params.repetition_penalty != 1
        prompt = dict.fromkeys(sequence.continued_token_ids if penalises_before else ())
        self._indices = {token: place for place, token in enumerate(prompt)}
        self._tokens = np.zeros(len(prompt) + params.max_tokens, dtype=np.int64)
        self._tokens[: len(prompt)] = list(prompt)
        self._counts = np.zeros(len(self._tokens), dtype=np.float32)
        self._num_counted = 0

    def read(self) -> tuple[_Ids, npt.NDArray[np.float32]]:
        """(tokens, counts): each token once; 0 for one that only the prompt has."""
        token_ids = self._sequence.token_ids
        for token in token_ids[self._num_counted :]:
            place = self._indices.setdefault(token, len(self._indices))
            self._tokens[place] = token
            self._counts[place] += 1
        self._num_counted = len(token_ids)
        return self._tokens[: len(self._indices)], self._counts[: len(self._indices)]


class _BadWords:
    """Token sequences that are never completed, found by the token before their last."""

    def __init__(
        self, words: Rows[tuple[int, ...]], eos_token_ids: tuple[int, ...], vocab_size: int
    ) -> None:
        """Leaves out words that are an end-of-text token, as transformers does: forbidding one
        would keep the text from ending.
        """
        self._single: list[int] = []
        self._longer: dict[tuple[int, ...], list[int]] = {}  # all but the last token -> the last
        self._lengths: dict[int, set[int]] = {}  # of those before it, by the last but one
        for word in words:
            if not word or max(word) >= vocab_size or (len(word) == 1 and word[0] in eos_token_ids):
                continue
            if len(word) == 1:
                self._single.append(word[0])
            else:
                self._longer.setdefault(word[:-1], []).append(word[-1])
                self._lengths.setdefault(word[-2], set()).add(len(word) - 1)
        self._most_before = max(map(len, self._longer), default=0)

    def completions(self, sequence: Sequence) -> list[int]:
        """The tokens that would complete a word after what a sequence has."""
        if not self._longer:
            return self._single
        before = sequence.token_ids[-self._most_before :]
        if len(before) < self._most_before and sequence.continues_prompt:
            before = sequence.prompt_token_ids[len(before) - self._most_before :] + before
        lengths = self._lengths.get(before[-1], ()) if before else ()
        found = [self._longer.get(tuple(before[-length:]), ()) for length in lengths]
        return self._single + [token for tokens in found for token in tokens]


def _add_biases(logits: torch.Tensor, changes: list[tuple[int, _SequenceProcessors]]) -> None:
    biased = [(row, change.biased) for row, change in changes if len(change.biased)]
    if biased:
        biases = np.concatenate([change.biases for _, change in changes])
        logits[_indices(biased, logits.device)] += torch.from_numpy(biases).to(logits.device)


def _penalise(logits: torch.Tensor, changes: list[tuple[int, _SequenceProcessors]]) -> None:
    """Repetition (CTRL, https://arxiv.org/abs/1909.05858, 4.1), then frequency and presence."""
    counted = [(row, c.params, *c.counts.read()) for row, c in changes if c.counts is not None]
    if not counted:
        return
    lengths = [len(tokens) for _, _, tokens, _ in counted]
    if not any(lengths):
        return
    device = logits.device

    def spread(values: list[float]) -> torch.Tensor:
        within_float32 = np.clip(values, -_LARGEST, _LARGEST).astype(np.float32)
        return torch.from_numpy(np.repeat(within_float32, lengths)).to(device)

    places = _indices([(row, tokens) for row, _, tokens, _ in counted], device)
    counts = torch.from_numpy(np.concatenate([counts for *_, counts in counted])).to(device)
    repetition = spread([params.repetition_penalty for _, params, _, _ in counted])
    frequency = spread([params.frequency_penalty for _, params, _, _ in counted])
    presence = spread([params.presence_penalty for _, params, _, _ in counted])
    scores = logits[places]
    scores = torch.where(scores < 0, scores * repetition, scores / repetition)
    scores = scores - frequency * counts - presence * (counts > 0)
    logits[places] = scores.nan_to_num_(nan=0)  # an extreme penalty is finite, however large


def _forbid(logits: torch.Tensor, changes: list[tuple[int, _SequenceProcessors]]) -> None:
    forbidden = [(row, change.forbidden()) for row, change in changes]
    if any(tokens for _, tokens in forbidden):
        logits[_indices(forbidden, logits.device)] = _MINUS_INFINITY


def _indices(
    tokens: list[tuple[int, Any]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, tokens), one element for each token of each row."""
    lengths = [len(ids) for _, ids in tokens]
    rows = np.repeat(np.array([row for row, _ in tokens], dtype=np.int64), lengths)
    columns = np.concatenate([np.asarray(ids, dtype=np.int64) for _, ids in tokens])
    return torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)


def mask_by_grammars(logits: torch.Tensor, constrained: Rows[tuple[int, Grammar]]) -> None:
    """Changes logits (rows, vocab) in place, in the rows that are named; no other is touched."""
    masks = b"".join(grammar.mask() for _, grammar in constrained)
    words = torch.frombuffer(bytearray(masks), dtype=torch.int32).view(len(constrained), -1)
    device, vocab_size = logits.device, logits.shape[-1]
    shifts = torch.arange(_BITS, dtype=torch.int32, device=device)
    bits = (words.to(device).unsqueeze(-1) >> shifts).bitwise_and_(1)  # (constrained, words, 32)
    forbidden = bits.flatten(1)[:, :vocab_size] == 0
    rows = torch.tensor([row for row, _ in constrained], device=device)
    logits[rows] = logits[rows].masked_fill_(forbidden, float("-inf"))
