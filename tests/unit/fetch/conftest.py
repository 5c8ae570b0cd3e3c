from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from generator.fetch import hub_client
from tests.support.fake_hub import FakeHub, Repository, ask_from_here, running_hub
from tests.unit.fetch.workplace import Workplace

FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 1000, "vocab/words.txt": b"a b"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A hub with one model, asked by huggingface_hub in this process; attempts come quickly."""
    with running_hub() as hub:
        ask_from_here(hub, monkeypatch, tmp_path / "no token")
        monkeypatch.setattr(hub_client, "WAITS_S", (0.0, 0.0, 0.0))
        # A hub in this process may be slow on a busy machine; it is never silent.
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 60.0)
        hub.repositories["org/tiny"] = Repository(dict(FILES))
        yield hub


@pytest.fixture
def workplace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Workplace:
    """An empty folder, and hf-triton to run there."""
    monkeypatch.chdir(tmp_path)
    return Workplace(tmp_path, capsys)


@pytest.fixture
def work(hub: FakeHub, workplace: Workplace) -> Workplace:
    """The same, with a models.yaml that names org/tiny."""
    workplace.write("tiny")
    return workplace
