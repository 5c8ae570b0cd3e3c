"""Callers, and other users of the machine, learn nothing of others' requests on a real server."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from hf_triton.runtime.request.request_parameters import CALLER
from hf_triton.tritonserver.stubs import find_stubs
from tests.scenarios.metrics import settled
from tests.support.one_server import OneServer
from tests.support.triton import Triton, eventually

REUSED = "hf_triton_reused_prompt_tokens_total"
PROMPT = "Tell me about the rivers, the hills and the towns of this country. " * 45
# A request that shares the prompt's 900 tokens adds 1,024 to REUSED with a chance of 87 %.
FEW, ENOUGH = 6, 10


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models("demo")


@pytest.mark.threat("shared-prefix-timing")
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_named_callers_share_nothing(triton: Triton, protocol: str) -> None:
    module: Any = http_client if protocol == "http" else grpc_client
    with module.InferenceServerClient(getattr(triton, protocol)) as client:

        def ask(caller: str) -> None:
            text = module.InferInput("text_input", [1], "BYTES")
            text.set_data_from_numpy(np.array([PROMPT.encode()], dtype=np.object_))
            # As the ports tell Triton whose call it is.
            told = {CALLER: caller}
            named = {"headers": told} if protocol == "grpc" else {}
            given = {"max_tokens": 1, **({} if named else told)}
            client.infer("demo", [text], parameters=given, **named)

        def reused() -> float:
            return triton.metric(REUSED, model="demo")

        before = settled(reused)
        for number in range(FEW):
            ask(f"{protocol} {number}")
        assert settled(reused) == before
        for _ in range(ENOUGH):
            ask(f"{protocol} 0")
        assert eventually(lambda: reused() > before)


@pytest.mark.threat("shared-memory-readers")
def test_a_models_memory_is_private_as_soon_as_it_is_ready(triton: Triton) -> None:
    """By itself: nobody supervises this server."""
    found = find_stubs(triton.server.pid)
    stubs = [stub for stub in found if stub.model.startswith("demo")]
    assert stubs
    for stub in stubs:
        region = Path("/dev/shm", psutil.Process(stub.pid).cmdline()[2])
        assert stat.S_IMODE(region.stat().st_mode) == 0o600
