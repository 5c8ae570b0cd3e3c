"""What travels to the device with a step, beside what the scheduler says of it.

Knows no sampler, no runner and no layout: it is where they meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..sequence.sequence import Sequence

if TYPE_CHECKING:
    import torch


@dataclass
class StepInputs:
    """Numbers for the step's one copy to the device.

    ``columns`` (any length,) int32 are set before ``forward``, by whoever needs numbers of his own
    on the device: ``forward`` leaves the same numbers in ``device_columns``, (the same length,)
    int32 on the runner's device, a view of the buffer that the step was copied to. They are there
    as soon as work that is launched after ``forward`` runs, and valid until the next ``forward``.
    Empty columns give an empty view. Runners of slots leave ``device_columns`` None.

    ``adapters`` are the numbers (0: none) of the step's sequences, of decodes and then of chunks;
    empty where none has one.

    ``pending_rows`` are the rows, in the step before, of the tokens that were sampled there and
    that the host has not read: such a token's id is written as ``-1 - row``, and filled in on the
    device from ``pending_tokens`` (rows,), those that were sampled there.
    """

    columns: np.ndarray[Any, np.dtype[np.int32]] = field(
        default_factory=lambda: np.empty(0, dtype=np.int32)
    )
    pending_rows: dict[Sequence, int] = field(default_factory=dict)
    pending_tokens: torch.Tensor | None = None
    adapters: list[int] = field(default_factory=list)
    device_columns: torch.Tensor | None = None
