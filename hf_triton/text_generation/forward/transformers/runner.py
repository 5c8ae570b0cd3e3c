"""What the in-flight engine needs of a runner, and of what makes one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hf_triton.text_generation.engine.step import Step


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """logits (rows, vocab) -> the first of the largest in each row, (rows,) int64; NaN, where
    there is one, is the largest.
    """
    return logits.argmax(dim=-1)


class Runner(ABC):
    """Computes steps over ``cache``.

    ``chunked_prefill``: a prompt may be computed in chunks. ``keeps_pages``: the cache is in pages.
    ``supports_drafts``: it can take tokens back. ``takes_snapshots``: its states can be kept for
    other prompts.
    """

    name = ""
    cache: Any
    chunked_prefill = True
    keeps_pages = False
    supports_drafts = False
    takes_snapshots = False
    argmax: Callable[[torch.Tensor], torch.Tensor] = staticmethod(argmax)

    @property
    def computes_answers_otherwise(self) -> bool:
        """Whether a token's state is another one where it was generated than in a prompt."""
        return False

    @abstractmethod
    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_rows, vocab) in the order of ``step.all_rows``."""


class RunnerFactory(Protocol):
    """Makes a runner from a model, a cache (in pages, where it ``keeps_pages``) and a device. A
    runner's class is one.
    """

    @property
    def name(self) -> str:
        """As the log has it."""

    @property
    def keeps_pages(self) -> bool: ...

    @property
    def chunked_prefill(self) -> bool: ...

    def __call__(self, model: Any, cache: Any, device: torch.device, /) -> Runner: ...


@dataclass(frozen=True)
class Making:
    """Makes a runner by a function."""

    name: str
    make: Callable[[Any, Any, torch.device], Runner]
    keeps_pages: bool = False
    chunked_prefill: bool = True

    def __call__(self, model: Any, cache: Any, device: torch.device, /) -> Runner:
        return self.make(model, cache, device)
