"""What the in-flight engine needs of a runner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from hf_triton.text_generation.engine.step import Step


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """logits (rows, vocab) -> the first of the largest in each row, (rows,) int64; NaN, where
    there is one, is the largest.
    """
    return logits.argmax(dim=-1)


class Runner(ABC):
    """Computes steps over ``cache``.

    ``supports_drafts``: it can take tokens back.
    ``takes_snapshots``: its states can be kept for other prompts.
    """

    name = ""
    cache: Any
    supports_drafts = False
    takes_snapshots = False
    argmax: Callable[[torch.Tensor], torch.Tensor] = staticmethod(argmax)

    @property
    def computes_answers_otherwise(self) -> bool:
        """Whether a token's state is another one where it was generated than in a prompt."""
        return False

    def in_parts(self, step: Step, forward: Callable[[Step], torch.Tensor]) -> torch.Tensor:
        """A step of whose forwards each is computed by ``forward``, with what that puts around it
        -> logits (num_rows, vocab).
        """
        return forward(step)

    def compute(self, step: Step) -> torch.Tensor:
        """Copies what the step's prompts begin with, and computes it as ``forward`` does."""
        self.cache.copy(step.copies)
        return self.forward(step)

    @abstractmethod
    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_rows, vocab) in the order of ``step.all_rows``."""
