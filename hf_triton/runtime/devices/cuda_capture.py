"""Captures a function's GPU kernels in a CUDA graph. See
https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from ..errors import reason
from ..log import warn

Replay = Callable[[], torch.Tensor]
Capture = Callable[[Callable[[], torch.Tensor]], Replay]
Size = TypeVar("Size")
Captured = TypeVar("Captured")
_MOST_FAILURES = 3  # failed captures, without one that succeeds, before it gives up


def capture_each(
    sizes: Sequence[Size], record: Callable[[Size], Captured], every: str
) -> dict[Size, Captured]:
    """What ``record`` captures for each size. Not every model can be captured, and eager is always
    right: what fails is left out, with one warning for all; ``every`` names all of them there.
    """
    found: dict[Size, Captured] = {}
    failures = []
    for size in sizes:
        try:
            found[size] = record(size)
        except Exception as error:
            failures.append(error)
        if len(failures) == _MOST_FAILURES and not found:
            break
    if failures:
        what = f"{len(failures)} of {len(sizes)} sizes" if found else every
        kind, why = type(failures[0]).__name__, reason(failures[0])
        warn(f"{what} run without CUDA graphs: {kind}: {why}")
    return found


def capture_on_stream(device: torch.device) -> Capture:
    """Captures into one memory pool on one stream of ``device``, after two runs there as torch
    asks.

    One stream for all: cuBLAS keeps a workspace for each stream it was called on (32 MiB on
    Hopper), and graphs share the pool's memory only where they were captured on the same one.
    """
    with torch.cuda.device(device):
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def capture(run: Callable[[], torch.Tensor]) -> Replay:
        # The stream must be on the model's device; another's would record nothing.
        with torch.cuda.device(device):
            caller = torch.cuda.current_stream()
            stream.wait_stream(caller)
            with torch.cuda.stream(stream):
                run()
                run()
            caller.wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            try:
                # Operations of other threads would break a "global" capture.
                with torch.cuda.graph(
                    graph, pool=pool, stream=stream, capture_error_mode="thread_local"
                ):
                    output = run()
            finally:
                torch.cuda.set_stream(caller)  # a failed capture leaves its own stream current

        def replay(_run: object = run) -> torch.Tensor:
            """Returns the output, which the next call overwrites. A graph reads tensors by their
            addresses: all that ``run`` closes over has to live as long.
            """
            graph.replay()
            return output

        return replay

    return capture
