"""Stand-ins for what torch.cuda asks a driver for: streams, events, graphs, memory, properties."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from tests.model.gpu.fake.recording import Recording


class FakeStream:
    """A stream: work on it is in order, so nothing is kept of it."""

    gpu: Recording

    def __init__(self, device: object = None, priority: int = 0, **_: object) -> None:
        self.device, self.priority = device, priority

    def wait_stream(self, stream: FakeStream) -> None:
        assert isinstance(stream, FakeStream)

    def wait_event(self, event: FakeEvent) -> None:
        assert event.is_recorded, "a stream waits for an event that nobody recorded"

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        event = event or type("Event", (FakeEvent,), {"gpu": self.gpu})()
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.gpu.note("wait", "Stream.synchronize")

    def query(self) -> bool:
        return True


class FakeEvent:
    """An event; waiting for it is a wait, asking it is none."""

    gpu: Recording

    def __init__(self, **_: object) -> None:
        self.is_recorded = False

    def record(self, stream: FakeStream | None = None) -> None:
        if stream is None:
            self.gpu.problems.append("an event of the current device, whatever device that is")
        self.is_recorded = True

    def wait(self, stream: FakeStream | None = None) -> None:
        assert self.is_recorded, "a stream waits for an event that nobody recorded"

    def synchronize(self) -> None:
        assert self.is_recorded, "the host waits for an event that nobody recorded"
        self.gpu.note("wait", "Event.synchronize")

    def query(self) -> bool:
        return self.is_recorded

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1.0


class FakeGraph:
    """What a capture recorded; a replay is one event."""

    gpu: Recording

    def __init__(self, *_: object, **__: object) -> None:
        self.capture: Any = None

    def replay(self) -> None:
        assert self.capture is not None, "a graph is replayed that was never captured"
        self.capture.num_replays += 1
        self.gpu.replayed(self.capture)

    def pool(self) -> str:
        return "pool"

    def reset(self) -> None:
        self.capture = None


def patches(gpu: Recording) -> Iterator[Any]:
    """Context managers that put the stand-ins in place of torch.cuda's own."""
    kinds = (("Stream", FakeStream), ("Event", FakeEvent), ("CUDAGraph", FakeGraph))
    own = {name: type(name, (kind,), {"gpu": gpu}) for name, kind in kinds}
    current = [own["Stream"]()]

    @contextmanager
    def device(_: object) -> Iterator[None]:
        yield

    @contextmanager
    def stream(new: Any) -> Iterator[None]:
        before, current[0] = current[0], new or current[0]
        try:
            yield
        finally:
            current[0] = before

    @contextmanager
    def graph(cuda_graph: Any, **_: object) -> Iterator[None]:
        with gpu.capturing_into(cuda_graph):
            yield

    functions: dict[str, Callable[..., Any]] = {
        "device": device,
        "stream": stream,
        "graph": graph,
        "set_stream": lambda new: current.__setitem__(0, new),
        "current_stream": lambda *_: current[0],
        "default_stream": lambda *_: current[0],
        "graph_pool_handle": lambda: "pool",
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _: None,
        "synchronize": lambda *_: gpu.note("wait", "torch.cuda.synchronize"),
        "is_current_stream_capturing": lambda: gpu.is_capturing,
        "get_device_name": lambda *_: "a GPU that is not there",
        "get_device_capability": lambda *_: gpu.capability,
        "get_device_properties": lambda *_: _properties(gpu),
        "is_bf16_supported": lambda *_, **__: True,
        "empty_cache": lambda: None,
        "mem_get_info": lambda *_: (gpu.free_bytes, gpu.total_bytes),
        "memory_allocated": lambda *_: gpu.live.now,
        "max_memory_allocated": lambda *_: gpu.live.peak,
        "memory_reserved": lambda *_: gpu.live.now,
        "max_memory_reserved": lambda *_: gpu.live.peak,
        "reset_peak_memory_stats": lambda *_: gpu.live.reset_peak(),
    }
    for name, stand_in in {**own, **functions}.items():
        yield patch.object(torch.cuda, name, stand_in)


def _properties(gpu: Recording) -> SimpleNamespace:
    major, minor = gpu.capability
    return SimpleNamespace(
        name="a GPU that is not there",
        major=major,
        minor=minor,
        total_memory=gpu.total_bytes,
        multi_processor_count=132 if major >= 9 else 84,
        warp_size=32,
        shared_memory_per_block_optin=(227 if major >= 9 else 99) * 1024,
    )
