"""The part of a GPU that a model that is loaded on demand may take for its caches: the server's
supervisor says it, for models share GPUs with others that are not loaded yet.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hf_triton.runtime.request.request_parameters import VARIABLE

if TYPE_CHECKING:
    import torch

_FILE = "cache_budgets"  # all models' bytes by GPU, beside the files of requests


def budgets_file(prefix: str) -> Path:
    return Path(f"{prefix}{_FILE}")


def within_budget(
    model: str, free_bytes: Callable[[torch.device], int]
) -> Callable[[torch.device], int]:
    """``free_bytes``, at most the budget of the Triton model ``model`` on each GPU."""
    budget: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError, KeyError):
        budget = json.loads(budgets_file(os.environ[VARIABLE]).read_bytes())[model]

    def free(device: torch.device) -> int:
        free = free_bytes(device)
        allowed = budget.get(f"{device.type}:{device.index or 0}")
        return free if allowed is None else min(free, int(allowed))

    return free
