"""What other users of the machine can read of requests."""

from __future__ import annotations

import stat
from pathlib import Path

import psutil
import pytest

from hf_triton.tritonserver.stubs import find_stubs
from tests.support.one_server import OneServer


@pytest.mark.threat("shared-memory-readers")
def test_a_models_memory_is_private_as_soon_as_it_is_ready(one_server: OneServer) -> None:
    """By itself: nobody supervises this server."""
    server = one_server.with_models("demo").server
    stubs = [stub for stub in find_stubs(server.pid) if stub.model.startswith("demo")]
    assert stubs
    for stub in stubs:
        region = Path("/dev/shm", psutil.Process(stub.pid).cmdline()[2])
        assert stat.S_IMODE(region.stat().st_mode) == 0o600
