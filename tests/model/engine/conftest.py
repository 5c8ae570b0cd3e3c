"""The tests' engines: the kinds of their storage, and changes of their threads."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hf_triton.runtime.engine.thread_count import StepThreads
from hf_triton.runtime.fused.parts import UnsupportedLayersError
from hf_triton.runtime.link import protocol
from hf_triton.runtime.trial import RunnerSpec
from hf_triton.text_generation.engines.in_flight import encoder_decoders, plan, runner_selection
from hf_triton.text_generation.memory.paged_cache import plan_pages
from hf_triton.text_generation.memory.pages import PAGE_SIZES, PagedSize
from tests.support import driving
from tests.support.as_on_a_gpu import as_on_a_gpu  # noqa: F401

_identities = itertools.count()


@pytest.fixture
def changing_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Engines change from one thread to two and back after each step; these are the steps'
    tokens.
    """
    noted: list[int] = []

    def change(self: StepThreads, num_tokens: int, seconds: float) -> None:
        noted.append(num_tokens)
        self.count = 3 - self.count

    monkeypatch.setattr(StepThreads, "note", change)
    return noted


@pytest.fixture
def own_link(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The link of a server of the test's own -> its identity. Both ends wait for each other,
    however busy the machine is, and their threads end with the test.
    """
    name = f"test-{os.getpid()}-{next(_identities)}"
    monkeypatch.setattr(protocol, "server_identity", lambda: name)
    monkeypatch.setattr("hf_triton.runtime.link.listener.FLUSH_S", 60.0)
    with driving.no_thread_left():
        yield name


@pytest.fixture
def not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, or without Numba."""

    def missing(*_: Any) -> Any:
        raise UnsupportedLayersError("not here")

    for runner in ("FUSED", "STATES"):
        monkeypatch.setattr(runner_selection, runner, RunnerSpec(runner, missing))


STORAGE_KINDS = ("compiled", "few pages")
_SMALL_PAGE = 4  # tokens


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny sequences have several of them."""
    monkeypatch.setitem(PAGE_SIZES, "cpu", _SMALL_PAGE)


@pytest.fixture(params=STORAGE_KINDS)
def storage_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The storage of keys and values in a test's engines; of few (small) pages, the longest
    sequence takes all but two, so that others are preempted.
    """

    def few(*args: Any, **kwargs: Any) -> PagedSize:
        size = plan_pages(*args, **kwargs)
        return replace(size, num_pages=1 + size.most_pages + 2)

    kind: str = request.param
    monkeypatch.setattr(driving, "COMPILED", kind == "compiled")
    if kind == "few pages":
        request.getfixturevalue("small_pages")
        for planning in (plan, encoder_decoders):
            monkeypatch.setattr(planning, "plan_pages", few)
    return kind
