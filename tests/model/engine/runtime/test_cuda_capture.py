"""How graphs are recorded, on a stand-in for torch.cuda that knows streams and devices."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from hf_triton.runtime.devices.cuda_capture import capture_on_stream


class FakeStream:
    """A stream of the device that was current when it was made."""

    def wait_stream(self, stream: FakeStream) -> None:
        assert isinstance(stream, FakeStream)


class FakeGraph:
    """What was recorded runs no more: a real graph launches kernels, not Python."""

    num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1


@dataclass
class FakeCuda:
    """One thread's current device and stream, and with what captures were begun."""

    device_now: int = 0
    stream_now: FakeStream = field(default_factory=FakeStream)
    captures: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.device_now = self.device_now, device.index
        yield
        self.device_now = before

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.stream_now = self.stream_now, stream
        yield
        self.stream_now = before

    @contextmanager
    def graph(self, graph: FakeGraph, *, stream: FakeStream, **options: Any) -> Iterator[None]:
        """As torch's: where the body raises, ending the capture does too, and the stream stays."""
        self.captures.append({"stream": stream, "device": self.device_now, **options})
        before, self.stream_now = self.stream_now, stream
        yield
        self.stream_now = before

    def set_stream(self, stream: FakeStream) -> None:
        self.stream_now = stream


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name in ("device", "stream", "graph", "set_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: fake.stream_now)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "a pool")
    return fake


SECOND = torch.device("cuda", 1)


def test_what_a_graph_reads_lives_as_long_as_its_replay(cuda: FakeCuda) -> None:
    def step() -> tuple[Callable[[], torch.Tensor], weakref.ref[torch.Tensor]]:
        slots = torch.arange(4)
        return (lambda: slots * 2), weakref.ref(slots)

    run, slots = step()
    replay = capture_on_stream(SECOND)(run)
    del run
    gc.collect()
    assert slots() is not None
    assert replay().tolist() == [0, 2, 4, 6]


def test_all_captures_share_a_stream_and_a_pool_on_the_models_device(cuda: FakeCuda) -> None:
    capture, caller = capture_on_stream(SECOND), cuda.stream_now
    for _ in range(2):
        capture(lambda: torch.ones(1))
    first, second = cuda.captures
    assert first == second
    assert first["device"] == 1
    assert first["pool"] == "a pool"
    assert first["capture_error_mode"] == "thread_local"
    assert cuda.stream_now is caller


def test_a_failed_capture_leaves_the_callers_stream(cuda: FakeCuda) -> None:
    caller = cuda.stream_now

    def fails() -> torch.Tensor:
        if cuda.captures:
            raise RuntimeError("operation not permitted when stream is capturing")
        return torch.ones(1)

    with pytest.raises(RuntimeError, match="not permitted"):
        capture_on_stream(SECOND)(fails)
    assert cuda.stream_now is caller
