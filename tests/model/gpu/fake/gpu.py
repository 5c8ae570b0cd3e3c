"""A GPU that is not there, for torch's CPU build.

Tensors on ``cuda:0`` are FakeTensors: shapes, dtypes and strides without values. Tensors on the CPU
are real. Every operator that touches the GPU is logged as a kernel, a copy or a wait with its line;
what a CUDA graph may not capture raises while one is captured, as CUDA does. What the host reads of
the GPU is made up (zeros), so which tokens come out must be tested on the CPU.

    with FakeGpu() as gpu:
        ...                      # tensors made inside may say device="cuda:0"
    gpu.log, gpu.captures, gpu.attention, gpu.live.peak

It can't show speed, races, what cuBLAS and cuDNN choose, nor the allocator's fragments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tests.model.gpu.fake.attention_backends import (
    MATH,
    AttentionCall,
    attention_call,
    chosen_backend,
)
from tests.model.gpu.fake.events import Capture, Event, Log, caller
from tests.model.gpu.fake.live_bytes import LiveBytes
from tests.model.gpu.fake.no_device_guard import no_device_guard
from tests.model.gpu.fake.operators import Functions, Operators
from tests.model.gpu.fake.torch_cuda import patches

GIB = 2**30


class FakeGpu:
    """``capability`` (8, 6) is an A10's, (9, 0) an H100's; ``truth`` what ``if tensor:`` learns."""

    def __init__(self, capability: tuple[int, int] = (9, 0), total_bytes: int = 80 * GIB) -> None:
        self.capability, self.total_bytes = capability, total_bytes
        self.log = Log()
        self.captures: list[Capture] = []
        self.problems: list[str] = []
        self.attention: list[tuple[AttentionCall, str, bool]] = []
        self.live = LiveBytes()
        self.pool_bytes = 0
        self.pinned: set[int] = set()
        self.truth: Callable[[], bool] = lambda: False
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.first_met: list[str] = []  # kernels of a shape that was captured before it ever ran
        self._ran: set[tuple[str, tuple[int, ...]]] = set()
        self._capture: Capture | None = None

    def __enter__(self) -> FakeGpu:
        self._stack = ExitStack()
        enter = self._stack.enter_context
        enter(no_device_guard())
        # As FakeTensorMode itself does where torch.cuda is not available, which we say it is.
        before = torch._C._only_lift_cpu_tensors()
        uses_cudnn = torch.backends.cuda.cudnn_sdp_enabled()
        self._stack.callback(torch.backends.cuda.enable_cudnn_sdp, uses_cudnn)
        torch._C._set_only_lift_cpu_tensors(True)
        self._stack.callback(torch._C._set_only_lift_cpu_tensors, before)
        for patcher in (*patches(self), *self._patches()):
            enter(patcher)
        enter(Operators(self))
        enter(Functions(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def is_capturing(self) -> bool:
        return self._capture is not None

    @property
    def free_bytes(self) -> int:
        """What live tensors and the graphs' pool leave."""
        return self.total_bytes - self.live.now - self.pool_bytes

    def note(self, kind: str, op: str, tensor: torch.Tensor | None = None) -> None:
        """Logs an event.

        Raises:
            RuntimeError: the host would wait while a graph is captured.
        """
        shape = () if tensor is None else tuple(tensor.shape)
        num_bytes = 0 if tensor is None else tensor.numel() * tensor.element_size()
        event = Event(kind, op, caller(), shape, num_bytes)
        self.log.append(event)
        if self._capture is None:
            self._ran.add((op, shape))
            return
        if kind == "kernel" and (op, shape) not in self._ran:
            self.first_met.append(str(event))
        self._capture.events.append(event)
        if kind == "wait":
            self.problems.append(f"{event} while capturing")
            raise RuntimeError(f"operation not permitted when stream is capturing ({event})")

    def replayed(self, capture: Capture) -> None:
        self.log.append(Event("replay", "CUDAGraph.replay", caller()))

    def attended(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """A call of scaled_dot_product_attention; its output lies as flash attention's does."""
        call = attention_call(*args, **kwargs)
        backend = chosen_backend(call, self.capability)
        self.attention.append((call, backend, self.is_capturing))
        if backend == MATH:
            # The plain kernel's operators, which say what memory it takes.
            plain = torch.ops.aten._scaled_dot_product_attention_math(*args, **kwargs)
            return cast("torch.Tensor", plain[0])
        if call.mask_dtype == torch.bool:
            self.live.held(call.mask_bytes)
        batch, heads, length, _ = call.query
        out: torch.Tensor = args[0].new_empty(batch, length, heads, call.value[-1]).transpose(1, 2)
        self.note("kernel", f"{backend} attention", out)
        return out

    @contextmanager
    def capturing_into(self, graph: Any) -> Iterator[None]:
        """What is asked for meanwhile is captured; the pool keeps the most that one took."""
        assert self._capture is None, "a capture within a capture"
        capture = Capture(caller())
        before, peak = self.live.now, self.live.peak
        self.live.reset_peak()
        self._capture = capture
        try:
            yield
            graph.capture = capture
            self.captures.append(capture)
        finally:
            self._capture = None
            self.pool_bytes = max(self.pool_bytes, self.live.peak - before)
            self.live.peak = max(peak, self.live.peak)

    def _patches(self) -> Iterator[Any]:
        """transformers takes a FakeTensor for a sign of torch.compile; a GPU's run is none."""
        from transformers.utils import import_utils

        yield patch.object(FakeTensor, "tolist", lambda t: torch.Tensor.tolist(t))
        yield patch.object(import_utils, "is_fake_tensor", lambda _: False)
        yield patch.object(import_utils, "is_cuda_stream_capturing", lambda: self.is_capturing)
