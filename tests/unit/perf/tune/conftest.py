"""What tests of tune share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna's journal waits for the disk after every line, and no test takes the power away."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
