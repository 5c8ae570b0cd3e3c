"""``hf-triton serve`` where file descriptors run out."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.served import Served, serve
from tests.support.triton import eventually, get


def limits(pid: int) -> tuple[int, int]:
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)


@contextlib.contextmanager
def no_more_descriptors(served: Served) -> Iterator[None]:
    """Nothing can be opened by the supervisor while the block runs."""
    pid = served.process.pid
    before = limits(pid)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def is_ready(served: Served) -> bool:
    return get(f"http://127.0.0.1:{served.listen.health_port}/ready").status == 200


@pytest.mark.threat("health-port")
def test_the_supervisor_survives_slow_connections_and_that_it_can_open_nothing(
    tmp_path: Path,
) -> None:
    with serve(tmp_path, "- name: plain\n") as served:
        served.wait_for("Ctrl-C stops")
        assert eventually(lambda: is_ready(served))
        address = ("127.0.0.1", served.listen.health_port)
        with contextlib.ExitStack() as slow:
            for number in range(1016):
                client = slow.enter_context(socket.create_connection(address, timeout=20))
                with contextlib.suppress(ConnectionError):
                    client.sendall(b"G")
                if number % 100 == 0:
                    url = f"http://{address[0]}:{address[1]}/ready"
                    assert get(url, timeout_s=5).status == 200
            num_open = len(list(Path(f"/proc/{served.process.pid}/fd").iterdir()))
            assert num_open < 128, "64 and its own"
            assert is_ready(served)

        soft, hard = limits(served.tritonserver_pid())
        assert soft == hard
        before = served.stub_pid("plain")
        with no_more_descriptors(served):
            assert served.generate("plain", "x").status == 200
            os.kill(before, signal.SIGKILL)
            served.wait_for("can't check the models: Too many open files; trying again")
            time.sleep(2)
            assert served.process.poll() is None
        # Triton 24.10 may end itself over such a death, and is started again then.
        assert eventually(lambda: served.stub_pids("plain") not in ([], [before]), 120)
        assert eventually(lambda: is_ready(served))
        assert served.generate("plain", "x").status == 200
        served.signal(signal.SIGTERM)
        assert served.exit_code() == 0
