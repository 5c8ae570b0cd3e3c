"""Repetition, frequency and presence penalties (CTRL, https://arxiv.org/abs/1909.05858, 4.1, then
OpenAI's).

The tokens that they look at stay on the device, each once with how often the output has it, so that
a token counts before the host has read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch

from ..sequence.sequence import Sequence
from .columns import Column, Columns, DeviceColumns

_LARGEST = 3e38  # a penalty beyond this would be infinite in float32
_FEWEST_PLACES = 64


class PenalisedTokens:
    """The tokens of one sequence, each in its place of ``row`` on the device."""

    def __init__(self, sequence: Sequence, row: int) -> None:
        penalises_before = sequence.params.repetition_penalty != 1
        prompt = dict.fromkeys(sequence.prompt_token_ids if penalises_before else ())
        self.sequence, self.row = sequence, row
        self._places = {token: place for place, token in enumerate(prompt)}
        self._counts = [0] * len(prompt)
        self._num_counted = 0  # tokens of the output
        self._num_on_device: int | None = None  # of them, with one that the host has not read yet

    @property
    def num_places(self) -> int:
        """How many the host knows of."""
        return len(self._counts)

    def begin_again(self) -> None:
        """Has the device take all of them, as at the first time."""
        self._num_on_device = None

    def take_new(self) -> tuple[bool, list[tuple[int, int, int, int]], bool]:
        """Whether the row begins; (row, place, token, count) of what the device does not know; and
        whether it has sampled a token since that it is to count itself.
        """
        token_ids, begins = self.sequence.token_ids, self._num_on_device is None
        changed = list(self._places.items()) if begins else []
        num_on_device = self._num_on_device or 0
        for index in range(self._num_counted, len(token_ids)):
            token = token_ids[index]
            place = self._places.setdefault(token, len(self._counts))
            if place == len(self._counts):
                self._counts.append(0)
            self._counts[place] += 1
            if index >= num_on_device:
                changed.append((token, place))
        self._num_counted = len(token_ids)
        self._num_on_device = self._num_counted + self.sequence.num_pending
        new = [
            (self.row, place, token, self._counts[place]) for token, place in dict(changed).items()
        ]
        return begins, new, self._num_on_device > max(num_on_device, self._num_counted)


@dataclass(frozen=True)
class PenaltyColumns:
    """One step's. ``rows`` (penalised, 2): of the logits, of the tokens. ``penalties`` (3,
    penalised). ``begun`` are rows of tokens. ``added`` (added, 4): row, place, token, count.
    ``sampled`` (sampled, 3) are tokens that the step before sampled: row, place where the token is
    a new one, row in that step.
    """

    rows: Column
    penalties: Column
    begun: Column
    added: Column
    sampled: Column
    num_rows: int
    num_places: int

    @classmethod
    def of(
        cls,
        penalised: Rows[tuple[int, PenalisedTokens]],
        pending_rows: Mapping[Sequence, int],
        columns: Columns,
    ) -> PenaltyColumns:
        """``penalised`` are (row of the logits, its tokens)."""
        begun: list[int] = []
        added: list[tuple[int, int, int, int]] = []
        sampled: list[tuple[int, int, int]] = []
        for _, tokens in penalised:
            begins, new, is_pending = tokens.take_new()
            added += new
            if begins:
                begun.append(tokens.row)
            if is_pending:
                sampled.append((tokens.row, tokens.num_places, pending_rows[tokens.sequence]))
        all_params = [tokens.sequence.params for _, tokens in penalised]
        penalties = [
            [p.repetition_penalty for p in all_params],
            [p.frequency_penalty for p in all_params],
            [p.presence_penalty for p in all_params],
        ]
        return cls(
            rows=columns.ints([(row, tokens.row) for row, tokens in penalised]),
            penalties=columns.floats(np.clip(penalties, -_LARGEST, _LARGEST)),
            begun=columns.ints(begun),
            added=columns.ints(added),
            sampled=columns.ints(sampled),
            num_rows=1 + max(tokens.row for _, tokens in penalised),
            num_places=max(tokens.num_places for _, tokens in penalised) + bool(sampled),
        )


class Penalties:
    """The tokens of all penalised sequences, 12 bytes each, in rows as long as the longest."""

    def __init__(self) -> None:
        self._tokens = torch.zeros(0, 0, dtype=torch.int64)  # (rows, places); -1 where none is
        self._counts = torch.zeros(0, 0)  # (rows, places)

    def apply(
        self,
        logits: torch.Tensor,
        step: PenaltyColumns,
        values: DeviceColumns,
        sampled_before: torch.Tensor | None,
    ) -> None:
        """Changes logits (rows, vocab) in place; ``sampled_before`` (rows,) is the step before."""
        self._make_room(step.num_rows, step.num_places, logits.device)
        self._add(step, values, sampled_before)
        if not step.num_places:
            return
        logits_rows, rows = values[step.rows].unbind(1)
        tokens = self._tokens[:, : step.num_places][rows]  # (penalised, places)
        counts = self._counts[:, : step.num_places][rows]
        repetition, frequency, presence = values[step.penalties].unsqueeze(2)
        # A place without a token does what the first does, which changes nothing without one.
        first, is_there = tokens[:, :1], tokens >= 0
        counts = torch.where(is_there, counts, counts[:, :1])
        places = logits_rows.unsqueeze(1), torch.where(is_there, tokens, first).clamp_min_(0)
        scores = logits[places]
        changed = torch.where(scores < 0, scores * repetition, scores / repetition)
        changed = changed - frequency * counts - presence * (counts > 0)
        changed.nan_to_num_(nan=0)  # an extreme penalty is finite, however large
        logits[places] = torch.where(first >= 0, changed, scores)

    def _add(
        self, step: PenaltyColumns, values: DeviceColumns, sampled_before: torch.Tensor | None
    ) -> None:
        if step.begun:
            self._tokens.index_fill_(0, values[step.begun], -1)
            self._counts.index_fill_(0, values[step.begun], 0)
        if step.added:
            rows, places, tokens, counts = values[step.added].unbind(1)
            self._tokens[rows, places] = tokens
            self._counts[rows, places] = counts.float()
        if step.sampled:
            assert sampled_before is not None
            rows, places, rows_before = values[step.sampled].unbind(1)
            tokens = sampled_before[rows_before]
            same = self._tokens[:, : step.num_places][rows] == tokens.unsqueeze(1)
            places = torch.where(same.any(dim=1), same.int().argmax(dim=1), places)
            self._tokens[rows, places] = tokens
            self._counts[rows, places] = self._counts[rows, places] + 1

    def _make_room(self, num_rows: int, num_places: int, device: torch.device) -> None:
        rows, places = self._tokens.shape
        if num_rows <= rows and num_places <= places:
            return
        tokens, counts = self._tokens, self._counts
        size = _doubled(rows, num_rows), _doubled(places or _FEWEST_PLACES, num_places)
        self._tokens = torch.full(size, -1, dtype=torch.int64, device=device)
        self._counts = torch.zeros(size, device=device)
        if rows:
            self._tokens[:rows, :places] = tokens
            self._counts[:rows, :places] = counts


def _doubled(size: int, least: int) -> int:
    """``size``, or the power of two from ``least`` on."""
    return size if least <= size else 1 << (least - 1).bit_length()
