"""One thread for torch, as the engines' own threads have here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from text_generation import holding
from text_generation.fused.attention_rules import UnfitError


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, or without Numba."""

    def missing(*_: Any) -> Any:
        raise UnfitError("not here")

    monkeypatch.setattr(holding, "fused_runner", missing)
