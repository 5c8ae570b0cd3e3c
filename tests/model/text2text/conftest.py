"""Tiny models of each family, saved once, and their answers by transformers itself."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hf_triton.text_generation.engine.delivery import Delivery
from hf_triton.text_generation.sequence.sequence import Update
from tests.support.text2text.reference import Reference
from tests.support.text2text.tiny_translators import make

Folders = Callable[[str], Path]
References = Callable[[str], Reference]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def sent_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of this process wait until the news of each step is on its way: what is late would go
    out together with what follows it.
    """
    put = Delivery.put

    def put_and_wait(self: Delivery, updates: list[Update]) -> None:
        last = _Last()
        sequence: Any = SimpleNamespace(recipient=last)
        put(self, [*updates, Update(sequence, [], "", None, None, is_first=True)])
        assert last.taken.wait(60), "not sent in time"

    monkeypatch.setattr(Delivery, "put", put_and_wait)


class _Last:
    """The last recipient of a step's news."""

    request_id = ""
    streams = True

    def __init__(self) -> None:
        self.taken = threading.Event()

    def take(self, update: Update) -> None:
        """Nothing to keep."""

    def flush(self) -> None:
        self.taken.set()

    def fail(self, error: Exception) -> None:
        raise AssertionError(error)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """The folder of a family's model, made when it is first asked for."""
    root = tmp_path_factory.mktemp("translators")

    @cache
    def folder(name: str) -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Marian's: sacremoses is recommended
            return make(name, root / name)

    return folder


@pytest.fixture(scope="session")
def references(folders: Folders) -> References:
    """The same model without any server."""
    return cache(lambda name: Reference(folders(name)))
