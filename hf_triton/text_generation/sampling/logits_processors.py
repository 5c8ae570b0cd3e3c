"""Changes logits by the options of their sequences before a token is chosen, in transformers'
and vLLM's order. All rows' changes go to the device together, as a few lists of (row, token).
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Rows

import numpy as np
import numpy.typing as npt
import torch

from hf_triton.runtime.devices.device import to_device

from ..sequence.sequence import Sequence
from ..structured.grammar import Grammar
from .token_logprobs import MOST_LOGITS

_MINUS_INFINITY = float("-inf")
_LARGEST_PENALTY = 3e38  # beyond it, infinite in float32
_Ids = npt.NDArray[np.int32]


class LogitsProcessors:
    def __init__(self, eos_token_ids: Rows[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)

    def apply(
        self, logits: torch.Tensor, sequences: Rows[Sequence], late: Collection[Sequence] = ()
    ) -> None:
        """Changes float32 logits (rows, vocab) in place; waits for no grammar of ``late``."""
        changes = [
            (row, self._processors(sequence, logits.shape[-1]))
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
            _apply_penalties(logits, penalised)
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
            _apply_masks(logits, held)

    def _processors(self, sequence: Sequence, vocab_size: int) -> _SequenceProcessors:
        found: _SequenceProcessors | None = sequence.kept.get(LogitsProcessors)
        if found is None:
            found = _SequenceProcessors(sequence, self._eos_token_ids, vocab_size)
            sequence.kept[LogitsProcessors] = found
        return found


class _SequenceProcessors:
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
        self.penalised = _PenalisedTokens(sequence) if params.penalises else None

    def forbidden(self) -> _Ids:
        is_short = len(self.sequence.token_ids) < self.sequence.params.min_tokens
        found = self._at_first if is_short else self._always
        completions = self._bad_words.completions(self.sequence)
        return np.concatenate([found, np.array(completions, np.int32)]) if completions else found

    def allowed_by(self, grammar: Grammar) -> npt.NDArray[np.uint8]:
        """``Grammar.mask`` without tokens that end outputs before this one may end: the grammar may
        take them for ordinary text.
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
    tokens: Rows[tuple[int, _Ids | array[int]]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(row, its tokens) -> the row and the token of each, on the device."""
    rows, token_ids = zip(*tokens, strict=True)
    pairs = np.empty((2, sum(map(len, token_ids))), dtype=np.int32)
    pairs[0] = np.repeat(rows, [len(one) for one in token_ids])
    pairs[1] = np.concatenate(token_ids)
    first, second = to_device(torch.from_numpy(pairs), device).long()
    return first, second


def _apply_masks(
    logits: torch.Tensor, constrained: Rows[tuple[int, npt.NDArray[np.uint8]]]
) -> None:
    """Changes rows of logits (rows, vocab) in place; masks have a bit for each token."""
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


class _PenalisedTokens:
    """The different tokens of a sequence that penalties look at, and their counts in the output."""

    def __init__(self, sequence: Sequence) -> None:
        penalises_prompt = sequence.params.repetition_penalty != 1
        self.sequence = sequence
        self.token_ids = array("i", set(sequence.prompt_token_ids if penalises_prompt else ()))
        self.counts = array("f", bytes(4 * len(self.token_ids)))
        self._places = {token: place for place, token in enumerate(self.token_ids)}
        self._num_counted = 0  # tokens of the output

    def count_new(self) -> None:
        for token in self.sequence.token_ids[self._num_counted :]:
            place = self._places.setdefault(token, len(self.counts))
            if place == len(self.counts):
                self.token_ids.append(token)
                self.counts.append(0)
            self.counts[place] += 1
        self._num_counted = len(self.sequence.token_ids)


def _apply_penalties(logits: torch.Tensor, penalised: Rows[tuple[int, _PenalisedTokens]]) -> None:
    """CTRL's penalty (https://arxiv.org/abs/1909.05858, 4.1), then OpenAI's, in place."""
    for _, tokens in penalised:
        tokens.count_new()
    sizes = [len(tokens.token_ids) for _, tokens in penalised]
    if not any(sizes):
        return
    all_params = [tokens.sequence.params for _, tokens in penalised]
    penalties = [
        (p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in all_params
    ]
    each = np.repeat(
        np.clip(penalties, -_LARGEST_PENALTY, _LARGEST_PENALTY).astype(np.float32), sizes, axis=0
    )
    counted = np.concatenate([tokens.counts for _, tokens in penalised])
    numbers = np.column_stack([each, counted])  # (tokens of all rows, 4)
    places = _places([(row, tokens.token_ids) for row, tokens in penalised], logits.device)
    on_device = to_device(torch.from_numpy(numbers), logits.device)
    repetition, frequency, presence, counts = on_device.unbind(1)
    scores = logits[places]
    changed = torch.where(scores < 0, scores * repetition, scores / repetition)
    changed -= frequency * counts + presence * (counts > 0)
    logits.index_put_(places, changed.nan_to_num_(nan=0))  # however large a penalty, finite


class BadWords:
    """``single`` are words of one token; longer ones are found by the token before their last."""

    def __init__(
        self, words: Rows[tuple[int, ...]], eos_token_ids: tuple[int, ...], vocab_size: int
    ) -> None:
        """Leaves out words that are an end-of-text token, as transformers does."""
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
