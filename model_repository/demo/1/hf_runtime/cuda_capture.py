"""Records what a function launches on a GPU, to launch it again at once.

See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Replay = Callable[[], torch.Tensor]
Capture = Callable[[Callable[[], torch.Tensor]], Replay]


def capture_on_stream() -> Capture:
    """Captures into one memory pool, after two runs on a side stream as torch asks."""
    pool = torch.cuda.graph_pool_handle()

    def capture(run: Callable[[], torch.Tensor]) -> Replay:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            output = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay

    return capture
