"""Finds prompts that may share a batch, by trial at load: padding changes the output of
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
from hf_triton.runtime.trial import first_agreeing
from hf_triton.text_generation.engine.own_logits import (
    check_numbers,
    difference,
    narrowed,
    own_logits,
    random_tokens,
)

# Prompts -> input_ids and attention_mask (prompts, longest).
Pad = Callable[[list[list[int]]], tuple[torch.Tensor, torch.Tensor]]

# Sizes in tokens, by which some architectures divide a row.
SIZES = re.compile(
    r"window|chunk_(size|len)|block_size|topk_blocks|index_topk|budget|floor_scale|n_floor"
)
SMALL_WIDTHS = (2, 4, 8)  # the first that the architecture takes
_LENGTHS = (13, 10, 6, 6)  # padded by 3 and by 7: not by multiples of one size
_NUM_FORCED = 3
# The largest difference of logits, as a share of their range. Another batch shape sums in another
# order; in 16 bits, and where quantized layers round their inputs, that shows.
_EXACT, _ROUNDED = 1e-3, 2e-2


class Batches(Enum):
    PADDED = "padded batches"
    EQUAL = "batches of equal prompt lengths"
    ALONE = "batches of one prompt"


# The prompts that are tried in each, of which so many, the last, are compared; the largest first.
_TRIED = {Batches.PADDED: ((0, 1, 2), 2), Batches.EQUAL: ((3, 2), 1), Batches.ALONE: ((2,), 1)}


def shown_batches(model: Any, pad: Pad) -> Batches:
    """The largest batches whose rows get the logits that each prompt gets alone, over several
    decoded tokens. Where sizes can't be narrowed to a few tokens, a trial does not show what
    padding changes. Raises LoadError for NaN logits, and whatever the model raises.
    """
    longest = max(_LENGTHS) + _NUM_FORCED
    rows = random_tokens(model, *[longest] * len(_LENGTHS))

    def logits(*numbers: int) -> torch.Tensor:
        """(rows, tokens, vocab) of a batch of these prompts."""
        input_ids, mask = pad([rows[number][: _LENGTHS[number]] for number in numbers])
        forced = [rows[number][-_NUM_FORCED:] for number in numbers]
        return own_logits(model, forced, input_ids, attention_mask=mask)

    is_exact = model.dtype == torch.float32 and getattr(model, "hf_quantizer", None) is None

    def largest(*candidates: Batches) -> Batches:
        alone = torch.cat([logits(1), logits(2)])

        def differs(batches: Batches) -> float:
            among, num = _TRIED[batches]
            return difference(logits(*among)[-num:], alone[-num:])

        named = ((one.value, one) for one in candidates)
        tolerance = _EXACT if is_exact else _ROUNDED
        found, _ = first_agreeing(named, differs, tolerance, taken="generates in")
        if found is None:
            log.warn("the model's answers differ from run to run: none can be compared")
        return found or Batches.ALONE

    check_numbers(logits(0))
    for width in SMALL_WIDTHS:
        with suppress(Exception), narrowed(model, SIZES.search, width):
            return largest(*Batches)
    return largest(Batches.EQUAL, Batches.ALONE)
