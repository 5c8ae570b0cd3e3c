"""Loading and unloading both folders of a streaming model again and again leaves nothing behind.

``HF_TRITON_NUM_RELOADS=50`` makes it fifty times; the ordinary run makes a few.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.scenarios.endpoint import Model, joined
from tests.scenarios.metrics import settled
from tests.scenarios.reference import Reference
from tests.scenarios.triton_endpoints import GrpcEndpoint
from tests.support.one_server import OneServer
from tests.support.triton import Triton, eventually

NUM_RELOADS = int(os.environ.get("HF_TRITON_NUM_RELOADS", "2"))
FOLDERS = ("tight_stream", "tight")
# The server's own allocator: it levels off, and what a model leaves behind would not.
MEMORY_MARGIN = 24 * 2**20
MEMORY_PER_RELOAD = 2**20


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models("demo", "tight", "timed")


@dataclass(frozen=True)
class Held:
    """What a server holds; ``memory`` is tritonserver's own resident set in bytes."""

    num_threads: int
    num_open_files: int
    num_memory_regions: int
    memory: int


def processes(triton: Triton) -> list[psutil.Process]:
    """The server's, its models' and its guard."""
    return [p for p in psutil.process_iter() if _process_group(p.pid) == triton.server.pid]


def held(triton: Triton) -> Held:
    server = next(
        p
        for p in processes(triton)
        if any("--http-port=" in a for a in p.cmdline()[:9]) and p.num_threads() > 4
    )
    prefix = f"hf_triton_{os.getpid()}_{triton.server.listen.http_port}_"
    return Held(
        server.num_threads(),
        server.num_fds(),
        len(list(Path("/dev/shm").glob(f"{prefix}*"))),
        server.memory_info().rss,
    )


def is_no_more_than(first: Held, last: Held) -> bool:
    """But for what comes and goes."""
    return (
        last.num_memory_regions <= first.num_memory_regions
        and last.num_threads <= first.num_threads + 2
        and last.num_open_files <= first.num_open_files + 8
        and last.memory <= first.memory + MEMORY_MARGIN + NUM_RELOADS * MEMORY_PER_RELOAD
    )


def _process_group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def control(triton: Triton, action: str, *folders: str) -> None:
    for folder in folders:
        answer = triton.control(folder, action)
        assert answer.status == 200, answer


def is_unloaded(triton: Triton, folder: str) -> bool:
    index = triton.admin("repository/index").body
    return not [model for model in index if model["name"] == folder and model["state"] == "READY"]


def reload(triton: Triton, order: tuple[str, ...]) -> None:
    control(triton, "unload", *order)
    assert eventually(lambda: all(is_unloaded(triton, folder) for folder in FOLDERS))
    control(triton, "load", *order)


def test_loading_again_and_again_leaves_nothing_behind(
    triton: Triton, reference: Reference
) -> None:
    model = Model(GrpcEndpoint(triton), "tight", batched=False)
    reload(triton, FOLDERS)  # to what the model has before anything was asked of it
    num_processes, after_each = settled(lambda: len(processes(triton))), []
    for number in range(NUM_RELOADS):
        # In either order: the front finds its engine whenever that comes, and misses it in words.
        reload(triton, FOLDERS if number % 2 else FOLDERS[::-1])

        assert model.ask("tensors", "Once", max_tokens=5).text() == reference.text("Once", 5)
        assert joined(model.engine.stream("Once", max_tokens=5)) == reference.text("Once", 5)
        assert eventually(lambda: len(processes(triton)) == num_processes)
        after_each.append(held(triton))

    # A model's process ends before its region, and before the threads that watched it.
    first = after_each[0]
    print(first, after_each[-1], sep="\n")
    assert eventually(lambda: is_no_more_than(first, held(triton))), (first, held(triton))
