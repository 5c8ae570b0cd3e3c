"""One thread for torch, as the engines' own threads have here, and what the runtime logs."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from hf_runtime import log
from triton_python_backend_utils import Logger


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def log_lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines logged during a test, each after ``I``, ``W`` or ``E``."""

    class Recorder(Logger):
        lines: ClassVar[list[str]] = []

    monkeypatch.setattr(log, "_triton_logger", lambda: Recorder)
    return Recorder.lines
