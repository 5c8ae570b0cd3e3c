"""One thread for torch, as the engines' own threads have here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from text_generation.fused.attention_rules import UnsupportedDecoderError
from text_generation.in_flight import runner_selection


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def patient_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends of the link wait for each other, however busy the machine is."""
    monkeypatch.setattr("hf_runtime.link.client._CONNECT_TIMEOUT_S", 60.0)
    monkeypatch.setattr("hf_runtime.link.listener._FLUSH_S", 60.0)


@pytest.fixture
def not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, or without Numba."""

    def missing(*_: Any) -> Any:
        raise UnsupportedDecoderError("not here")

    monkeypatch.setattr(runner_selection, "fused_runner", missing)
