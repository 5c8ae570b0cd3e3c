"""The logits processors: what the options of sequences change in their logits before a token is
chosen. Allowed tokens, biases, penalties, bad words, ends of text that are forbidden until
min_tokens, a task's own rule, grammars.

In transformers' and vLLM's order. All rows' changes go to the device together, as a few lists of
(row, token), so rows without such options cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..sequence.sequence import Sequence
from ..structured.grammar import Grammar
from .columns import MOST_LOGITS, Column, Columns, DeviceColumns, to_device
from .penalties import PenalisedTokens, Penalties, PenaltyColumns

_MINUS_INFINITY = float("-inf")
_Ids = npt.NDArray[np.int32]
_NONE: _Ids = np.zeros((0, 2), dtype=np.int32)


@dataclass(frozen=True)
class Changes:
    """One step's, of the rows whose logits change: ``biased``, ``allowed`` and ``forbidden`` (n, 2)
    are (row, token). ``limited`` are the rows that may have ``allowed`` tokens alone, ``followed``
    those whose next token depends on their last.
    """

    limited: Column
    allowed: Column
    biased: Column
    biases: Column
    forbidden: Column
    penalties: PenaltyColumns | None
    followed: list[tuple[int, _SequenceProcessors]]


class LogitsProcessors:
    """Changes the logits of a batch; keeps what it needs of each sequence until ``forget``."""

    def __init__(self, eos_token_ids: Rows[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._changes: dict[Sequence, _SequenceProcessors] = {}
        self._penalties = Penalties()
        self._free_rows: list[int] = []  # of the penalties' tokens
        self._num_rows = 0
        self._unsent: list[PenalisedTokens] = []

    def prepare(
        self,
        sequences: Rows[Sequence],
        vocab_size: int,
        pending_rows: Mapping[Sequence, int],
        columns: Columns,
    ) -> Changes | None:
        """Puts what is known before a step's logits into ``columns``; None where none change.
        ``pending_rows`` are those, in the step before, of tokens that are still on the device.
        """
        for tokens in self._unsent:
            tokens.begin_again()  # the step was given up
        self._unsent = []
        changes = [
            (row, self._of(sequence, vocab_size))
            for row, sequence in enumerate(sequences)
            if sequence.params.changes_logits
        ]
        if not changes:
            return None
        limited = [(row, change.allowed) for row, change in changes if len(change.allowed)]
        biased = [(row, change) for row, change in changes if len(change.biased)]
        forbidden = [(row, change.forbidden()) for row, change in changes]
        penalised = [(row, c.penalised) for row, c in changes if c.penalised is not None]
        self._unsent = [tokens for _, tokens in penalised]
        return Changes(
            limited=columns.ints([row for row, _ in limited]),
            allowed=columns.ints(_pairs(limited)),
            biased=columns.ints(_pairs((row, change.biased) for row, change in biased)),
            biases=columns.floats([bias for _, change in biased for bias in change.biases]),
            forbidden=columns.ints(_pairs(forbidden)),
            penalties=PenaltyColumns.of(penalised, pending_rows, columns) if penalised else None,
            followed=[(row, change) for row, change in changes if change.follows],
        )

    def apply(
        self,
        logits: torch.Tensor,
        changes: Changes,
        values: DeviceColumns,
        tokens_before: torch.Tensor | None = None,
        late: Collection[Sequence] = (),
    ) -> None:
        """Changes float32 logits (rows, vocab) in place. ``tokens_before`` (rows,) is the step
        before; nobody waits for the grammars of ``late``.
        """
        self._unsent = []
        if changes.limited:
            places = values[changes.allowed].unbind(1)
            kept = logits[places]
            logits.index_fill_(0, values[changes.limited], _MINUS_INFINITY)
            logits[places] = kept
        if changes.biased:
            logits[values[changes.biased].unbind(1)] += values[changes.biases]
        if changes.penalties is not None:
            self._penalties.apply(logits, changes.penalties, values, tokens_before)
        if changes.forbidden:
            _forbid(logits, values[changes.forbidden])
        self._follow(logits, changes.followed, late)

    def _follow(
        self,
        logits: torch.Tensor,
        followed: list[tuple[int, _SequenceProcessors]],
        late: Collection[Sequence],
    ) -> None:
        """Forbids what the last tokens do."""
        words = _pairs((row, change.completions()) for row, change in followed)
        if len(words):
            _forbid(logits, to_device(words, logits.device).long())
        sequences = [(row, change.sequence) for row, change in followed]
        for row, sequence in sequences:
            if sequence.params.rule is not None:
                sequence.params.rule.restrict(logits[row], sequence.token_ids)
        held = [
            (row, change.allowed_by(change.sequence.grammar))
            for row, change in followed
            if change.sequence.grammar is not None and change.sequence not in late
        ]
        if held:
            apply_masks(logits, held)

    def forget(self, sequence: Sequence) -> None:
        """Drops what is kept for a finished sequence."""
        change = self._changes.pop(sequence, None)
        if change is not None and change.penalised is not None:
            self._free_rows.append(change.penalised.row)

    def _of(self, sequence: Sequence, vocab_size: int) -> _SequenceProcessors:
        change = self._changes.get(sequence)
        if change is None:
            change = _SequenceProcessors(sequence, self._eos_token_ids, vocab_size)
            self._changes[sequence] = change
            if sequence.params.penalises:
                change.penalised = PenalisedTokens(sequence, self._free_row())
        return change

    def _free_row(self) -> int:
        if self._free_rows:
            return self._free_rows.pop()
        self._num_rows += 1
        return self._num_rows - 1


class _SequenceProcessors:
    """What one sequence's options change."""

    penalised: PenalisedTokens | None = None

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
        self.follows = bool(self._bad_words.follows or sequence.grammar or params.rule)

    def forbidden(self) -> _Ids:
        """The tokens that must not come next, whichever came last."""
        is_short = self.sequence.num_sampled_tokens < self.sequence.params.min_tokens
        return self._at_first if is_short else self._always

    def completions(self) -> list[int]:
        """The tokens that would complete a bad word."""
        return self._bad_words.completions(self.sequence)

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


def _pairs(tokens: Iterable[tuple[int, Rows[int] | _Ids]]) -> _Ids:
    """(row, its tokens) -> (row, token) for each token, (n, 2)."""
    listed = [one for one in tokens if len(one[1])]
    if not listed:
        return _NONE
    rows, ids = zip(*listed, strict=True)
    pairs = np.empty((sum(map(len, ids)), 2), dtype=np.int32)
    pairs[:, 0] = np.repeat(rows, [len(one) for one in ids])
    pairs[:, 1] = np.concatenate(ids)
    return pairs


def _forbid(logits: torch.Tensor, places: torch.Tensor) -> None:
    """places (n, 2) are (row, token)."""
    # Not a plain number, which torch would copy to the device, and wait for it.
    logits.index_put_(places.unbind(1), logits.new_full((), _MINUS_INFINITY))


def apply_masks(logits: torch.Tensor, constrained: Rows[tuple[int, npt.NDArray[np.uint8]]]) -> None:
    """Changes logits (rows, vocab) in place, in the rows that are named; no other is touched. The
    masks have a bit for each token, 1 where it may come.
    """
    masks = [mask.view(np.int32) for _, mask in constrained]
    rows = np.array([row for row, _ in constrained], dtype=np.int32)
    sent = to_device(np.concatenate([rows, *masks]), logits.device)
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
        self.follows = bool(self._longer)  # whether what comes last matters
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
