"""A tritonserver whose models are loaded while the machine's memory is watched."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from generator.errors import PerfError
from generator.server import TritonServer
from perf.growth.processes import KEPT_FREE_GIB, available_gib
from perf.serving import free_listen

_LOAD_TIMEOUT_S = 1800.0
_ENDS_WITHIN_S = 2.0


@contextlib.contextmanager
def served(repository: Path, models: Sequence[str]) -> Iterator[TritonServer]:
    """The server, all models ready. It is killed where the machine gets short of memory.

    Raises PerfError then, and where it dies inside the block; ServerError where a model fails.
    """
    with TritonServer(repository, free_listen(), write_log=_say_nothing) as server:
        _load(server, models)
        try:
            yield server
        except PerfError as error:
            if not _ends(server):
                raise
            raise PerfError(server.last_words("the server died")) from error


def _load(server: TritonServer, models: Sequence[str]) -> None:
    server.loader.begin(models)
    deadline = time.monotonic() + _LOAD_TIMEOUT_S
    while server.loader.num_loading:
        outcome = server.next_outcome(timeout_s=0.5)
        if outcome and outcome.failure:
            raise PerfError(f"model '{outcome.model}' failed to load: {outcome.failure}")
        _refuse_to_swap(server)
        if time.monotonic() > deadline:
            raise PerfError(f"models are still loading after {_LOAD_TIMEOUT_S:.0f} s")


def _ends(server: TritonServer) -> bool:
    """Whether it has ended, or is about to."""
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while server.exit_code() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return server.exit_code() is not None


def _refuse_to_swap(server: TritonServer) -> None:
    available = available_gib()
    if available < KEPT_FREE_GIB / 2:
        left = server.loader.num_loading
        raise PerfError(
            f"the machine has only {available:.1f} GiB of memory left, and {left} models are not "
            "loaded yet: stopped before it swaps"
        )


def _say_nothing(_: str) -> None:
    """The end of the log is told where the server dies."""
