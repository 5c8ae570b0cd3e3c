"""A tritonserver on one model repository, for as long as it is measured."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tqdm import tqdm  # type: ignore[import-untyped]

from hf_triton.tritonserver.listen import Listen
from hf_triton.tritonserver.process import TritonServer


@contextmanager
def serving(
    repository: Path,
    *models: str,
    listen: Listen | None = None,
    write_log: Callable[[str], None] | None = None,
) -> Iterator[TritonServer]:
    """Serve ``models`` of ``repository``, on free ports unless told. Raises ``ServerError``.

    They are loaded one after the other: each times its own kernels while it loads.
    """
    write_log = write_log or write_beside_bar
    with TritonServer(repository, listen or free_listen(), write_log=write_log) as server:
        for model in models:
            server.wait_ready([model])
        yield server


def free_listen() -> Listen:
    """Three ports of this machine that nobody listens on."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(3)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return Listen("127.0.0.1", *(probe.getsockname()[1] for probe in probes))


def write_beside_bar(line: str) -> None:
    """A line of the server's log, above the progress bar."""
    tqdm.write(line, file=sys.stderr)
