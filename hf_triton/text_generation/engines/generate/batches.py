"""Which prompts may share a batch, found by trial at load: padding changes the output of
architectures that count blocks, chunks or positions from the start of a padded row, or that let
tokens attend to padding.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any

import torch

from hf_triton.runtime import log
from hf_triton.text_generation.engine.own_logits import (
    check_numbers,
    difference,
    narrowed,
    own_logits,
)

# Prompts -> input_ids and attention_mask (prompts, longest).
Pad = Callable[[list[list[int]]], tuple[torch.Tensor, torch.Tensor]]

# Sizes in tokens, by which some architectures divide a row.
SIZES = re.compile(
    r"window|chunk_(size|len)|block_size|topk_blocks|index_topk|budget|floor_scale|n_floor"
)
SMALL_WIDTHS = (2, 4, 8)  # the first that the architecture takes
_LENGTHS = (13, 10, 6)  # padded by 3 and by 7: not by multiples of one size
_NUM_FORCED = 3
# The largest difference of logits, as a share of their range. Another batch shape sums in another
# order; in 16 bits, and where quantized layers round their inputs, that shows.
_EXACT, _ROUNDED = 1e-3, 2e-2


class Batches(Enum):
    """What a batch may hold, the largest first."""

    PADDED = "padded batches"
    EQUAL = "batches of equal prompt lengths"
    ALONE = "batches of one prompt"


def shown_batches(model: Any, pad: Pad) -> Batches:
    """The largest batches whose rows get the logits that each prompt gets alone, over several
    decoded tokens. Where sizes can't be narrowed to a few tokens, a trial does not show what
    padding changes. Raises LoadError for NaN logits, and whatever the model raises.
    """
    trial = _Trial(model, pad)
    check_numbers(trial.logits([0]))
    for width in SMALL_WIDTHS:
        with suppress(Exception), narrowed(model, SIZES.search, width):
            return trial.largest((Batches.PADDED, Batches.EQUAL))
    return trial.largest((Batches.EQUAL,))


class _Trial:
    """Three prompts of different lengths, and one as long as the last."""

    def __init__(self, model: Any, pad: Pad) -> None:
        self._model, self._pad = model, pad
        vocab_size = int(model.config.get_text_config().vocab_size)
        draw = torch.Generator().manual_seed(0)
        lengths = (*_LENGTHS, _LENGTHS[-1])
        rows = torch.randint(
            1, vocab_size, (4, max(lengths) + _NUM_FORCED), generator=draw
        ).tolist()
        self._prompts = [row[:length] for row, length in zip(rows, lengths, strict=True)]
        self._forced = [row[-_NUM_FORCED:] for row in rows]
        is_exact = model.dtype == torch.float32 and getattr(model, "hf_quantizer", None) is None
        self._tolerance = _EXACT if is_exact else _ROUNDED

    def logits(self, rows: list[int]) -> torch.Tensor:
        """(rows, tokens, vocab) of a batch of these prompts."""
        forced = [self._forced[row] for row in rows]
        return own_logits(self._model, *self._pad([self._prompts[row] for row in rows]), forced)

    def largest(self, candidates: tuple[Batches, ...]) -> Batches:
        alone = torch.cat([self.logits([row]) for row in (1, 2)])
        for batches in candidates:
            among = [0, 1, 2] if batches is Batches.PADDED else [3, 2]
            expected = alone if batches is Batches.PADDED else alone[1:]
            if difference(self.logits(among)[1:], expected) <= self._tolerance:
                return batches
        if difference(self.logits([2]), alone[1:]) > self._tolerance:
            log.warn("the model's own answers change from run to run: none can be reproduced")
        return Batches.ALONE
