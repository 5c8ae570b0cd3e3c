"""What the stand-ins for torch need of the GPU that is not there (``gpu.FakeGpu``)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.model.gpu.fake.events import Capture
from tests.model.gpu.fake.live_bytes import LiveBytes


class Recording(Protocol):
    """Keeps what it is told; has what a GPU tells about itself."""

    capability: tuple[int, int]
    total_bytes: int
    live: LiveBytes
    pinned: set[int]
    problems: list[str]
    truth: Callable[[], bool]
    fake: FakeTensorMode

    @property
    def is_capturing(self) -> bool: ...

    @property
    def free_bytes(self) -> int: ...

    def note(self, kind: str, op: str, tensor: torch.Tensor | None = None) -> None: ...

    def replayed(self, capture: Capture) -> None: ...

    def attended(self, *args: Any, **kwargs: Any) -> torch.Tensor: ...

    def capturing_into(self, graph: Any) -> AbstractContextManager[None]: ...
