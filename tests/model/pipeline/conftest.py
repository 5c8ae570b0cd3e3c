"""Tiny pipelines with random weights, each served in this process, beside transformers' own."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stub_server import StubServer

from tests.support.served_encoder import pipeline, served
from tests.support.tiny_pipelines import MAKERS

Serve = Callable[..., StubServer]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model for a pipeline, made when it is first asked for."""

    @functools.cache
    def folder(name: str) -> Path:
        made = tmp_path_factory.mktemp(name)
        MAKERS[name](made)
        return made

    return folder


@pytest.fixture
def serve(
    tiny_model: Callable[[str], Path], tmp_path: Path, log_lines: list[str]
) -> Iterator[Serve]:
    """Serves a tiny model's pipeline, with options; unloaded after the test."""
    with _serving(tiny_model, tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def shared(
    tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serve]:
    """Serves a tiny model's pipeline without options, once for all tests of a file."""
    with _serving(tiny_model, tmp_path_factory.mktemp("shared")) as start:
        yield functools.cache(start)


@contextlib.contextmanager
def _serving(tiny_model: Callable[[str], Path], place: Path) -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:

        def start(
            name: str, model_keys: Any = None, max_batch_size: int = 0, **options: Any
        ) -> Any:
            folder = place / str(len(list(place.iterdir())))
            folder.mkdir()
            keys = {"max_batch_size": max_batch_size, **(model_keys or {})}
            given = {"pipeline": name, **options}
            served_one = served(folder, "pipeline", tiny_model(name), options=given, **keys)
            return stack.enter_context(served_one)

        yield start


@pytest.fixture(scope="session")
def own_pipeline(tiny_model: Callable[[str], Path]) -> Callable[[str], Any]:
    """transformers' own pipeline of the same tiny model."""
    return functools.cache(lambda name: pipeline(name, tiny_model(name)))
