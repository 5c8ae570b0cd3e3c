"""The logits processors: what the options of sequences change in their logits before a token is
chosen. Allowed tokens, biases, penalties, bad words, ends of text that are forbidden until
min_tokens, a task's own rule, grammars.

In transformers' and vLLM's order. All rows' changes go to the device together, as a few lists of
(row, token), so rows without such options cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Rows

import numpy as np
import numpy.typing as npt
import torch

from hf_triton.runtime.devices.device import to_device

from ..sequence.sequence import Sequence
from ..structured.grammar import Grammar
from .penalties import PenalisedTokens, apply_penalties
from .token_logprobs import MOST_LOGITS

_MINUS_INFINITY = float("-inf")
_Ids = npt.NDArray[np.int32]


class LogitsProcessors:
    """Changes the logits of a batch; keeps what it needs of each sequence until ``forget``."""

    def __init__(self, eos_token_ids: Rows[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._changes: dict[Sequence, _SequenceProcessors] = {}

    def apply(
        self, logits: torch.Tensor, sequences: Rows[Sequence], late: Collection[Sequence] = ()
    ) -> None:
        """Changes float32 logits (rows, vocab) in place; nobody waits for the grammars of ``late``,
        whose tokens are thrown away.
        """
        changes = [
            (row, self._of(sequence, logits.shape[-1]))
            for row, sequence in enumerate(sequences)
            if sequence.params.changes_logits
        ]
        limited = [(row, change.allowed) for row, change in changes if len(change.allowed)]
        if limited:
            places = _places(limited, logits.device)
            kept = logits[places]
            rows = torch.tensor([row for row, _ in limited])
            logits.index_fill_(0, to_device(rows, logits.device), _MINUS_INFINITY)
            logits[places] = kept
        biased = [(row, change) for row, change in changes if len(change.biased)]
        if biased:
            places = _places([(row, change.biased) for row, change in biased], logits.device)
            biases = torch.from_numpy(np.concatenate([change.biases for _, change in biased]))
            logits[places] += to_device(biases, logits.device)
        penalised = [(row, c.penalised) for row, c in changes if c.penalised is not None]
        if penalised:
            apply_penalties(logits, penalised)
        found = ((row, change.forbidden()) for row, change in changes)
        forbidden = [(row, token_ids) for row, token_ids in found if len(token_ids)]
        if forbidden:
            # Not a plain number, which torch would copy to the device, and wait for it.
            places = _places(forbidden, logits.device)
            logits.index_put_(places, logits.new_full((), _MINUS_INFINITY))
        for row, change in changes:
            rule = change.sequence.params.rule
            if rule is not None:
                rule.restrict(logits[row], change.sequence.token_ids)
        held = [
            (row, change.allowed_by(change.sequence.grammar))
            for row, change in changes
            if change.sequence.grammar is not None and change.sequence not in late
        ]
        if held:
            apply_masks(logits, held)

    def forget(self, sequence: Sequence) -> None:
        """Drops what is kept for a finished sequence."""
        self._changes.pop(sequence, None)

    def _of(self, sequence: Sequence, vocab_size: int) -> _SequenceProcessors:
        if sequence not in self._changes:
            change = _SequenceProcessors(sequence, self._eos_token_ids, vocab_size)
            self._changes[sequence] = change
        return self._changes[sequence]


class _SequenceProcessors:
    """What one sequence's options change."""

    def __init__(self, sequence: Sequence, eos_token_ids: tuple[int, ...], vocab_size: int) -> None:
        params = sequence.params
        biases = [(token, bias) for token, bias in params.logit_bias if token < vocab_size]
        ends = (*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids))
        self._ends = np.array([token for token in ends if token < vocab_size], dtype=np.int32)
        self.allowed = np.array(params.allowed_token_ids, dtype=np.int32)
        self.biased = np.array([token for token, _ in biases], dtype=np.int32)
        self.biases = np.array([bias for _, bias in biases], dtype=np.float32)
        self.sequence = sequence
        self._bad_words = BadWords(params.bad_token_ids, eos_token_ids, vocab_size)
        self._always = np.array(self._bad_words.single, dtype=np.int32)
        self._at_first = np.concatenate([self._always, self._ends])
        self.penalised = PenalisedTokens(sequence) if params.penalises else None

    def forbidden(self) -> _Ids:
        """The tokens that must not come next."""
        is_short = len(self.sequence.token_ids) < self.sequence.params.min_tokens
        found = self._at_first if is_short else self._always
        completions = self._bad_words.completions(self.sequence)
        return np.concatenate([found, np.array(completions, np.int32)]) if completions else found

    def allowed_by(self, grammar: Grammar) -> npt.NDArray[np.uint8]:
        """A bit for each token, as ``Grammar.mask``; none of those that end outputs before this one
        may end, though the grammar takes some of them for pieces of ordinary text.
        """
        mask = np.frombuffer(grammar.mask(), dtype=np.uint8)
        if grammar.may_end:
            return mask
        places, bits = self._ends >> 3, np.uint8(1) << (self._ends & 7).astype(np.uint8)
        if (mask[places] & bits).any():
            mask = mask.copy()
            np.bitwise_and.at(mask, places, ~bits)
        return mask


def _places(
    tokens: Rows[tuple[int, _Ids]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(row, its tokens) -> the row and the token of each, on the device."""
    rows, token_ids = zip(*tokens, strict=True)
    pairs = np.empty((2, sum(map(len, token_ids))), dtype=np.int32)
    pairs[0] = np.repeat(rows, [len(one) for one in token_ids])
    pairs[1] = np.concatenate(token_ids)
    first, second = to_device(torch.from_numpy(pairs), device).long()
    return first, second


def apply_masks(logits: torch.Tensor, constrained: Rows[tuple[int, npt.NDArray[np.uint8]]]) -> None:
    """Changes logits (rows, vocab) in place, in the rows that are named; no other is touched. The
    masks have a bit for each token, 1 where it may come.
    """
    masks = [mask.view(np.int32) for _, mask in constrained]
    rows = np.array([row for row, _ in constrained], dtype=np.int32)
    sent = to_device(torch.from_numpy(np.concatenate([rows, *masks])), logits.device)
    words = sent[len(rows) :].view(torch.uint8).view(len(rows), -1, 1)
    shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
    vocab_size = logits.shape[-1]
    at_once = max(1, MOST_LOGITS // vocab_size)
    parts = sent[: len(rows)].long().split(at_once), words.split(at_once)
    for some, their_words in zip(*parts, strict=True):
        bits = (their_words >> shifts).bitwise_and_(1)  # (some, bytes, 8)
        forbidden = bits.flatten(1)[:, :vocab_size] == 0
        logits[some] = logits[some].masked_fill_(forbidden, _MINUS_INFINITY)


class BadWords:
    """``single`` are words of one token; longer ones are found by the token before their last."""

    def __init__(
        self, words: Rows[tuple[int, ...]], eos_token_ids: tuple[int, ...], vocab_size: int
    ) -> None:
        """Leaves out words that are an end-of-text token, as transformers does: forbidding one
        would keep the text from ending.
        """
        self.single: list[int] = []
        self._longer: dict[tuple[int, ...], list[int]] = {}  # all but the last token -> the last
        self._lengths: dict[int, set[int]] = {}  # of those before it, by the last but one
        for word in words:
            if not word or max(word) >= vocab_size or (len(word) == 1 and word[0] in eos_token_ids):
                continue
            if len(word) == 1:
                self.single.append(word[0])
            else:
                self._longer.setdefault(word[:-1], []).append(word[-1])
                self._lengths.setdefault(word[-2], set()).add(len(word) - 1)
        self._most_before = max(map(len, self._longer), default=0)

    def completions(self, sequence: Sequence) -> list[int]:
        """The tokens that would complete one of the longer words after what a sequence has."""
        if not self._longer:
            return []
        before = sequence.token_ids[-self._most_before :]
        if len(before) < self._most_before:
            before = sequence.prompt_token_ids[len(before) - self._most_before :] + before
        lengths = self._lengths.get(before[-1], ()) if before else ()
        found = [self._longer.get(tuple(before[-length:]), ()) for length in lengths]
        return [token for tokens in found for token in tokens]
