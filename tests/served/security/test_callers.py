"""How a request's caller reaches its model: a header that Triton passes on."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from generator.spec.runtime_rules import CALLER
from hf_triton.tritonserver.restrictions import forwarding
from tests.scenarios.metrics import settled
from tests.support.one_server import OneServer
from tests.support.triton import Triton, eventually

OURS = [f"--{protocol}-header-forward-pattern=(?i:^{CALLER}$)" for protocol in ("http", "grpc")]
REUSED = "hf_triton_reused_prompt_tokens_total"
PROMPT = "Tell me about the rivers, the hills and the towns of this country. " * 15
FEW, ENOUGH = 12, 60  # see tests/scenarios/shared_prefixes.py


def test_the_callers_header_is_passed_on() -> None:
    assert forwarding([]) == OURS
    assert forwarding(["--log-verbose=1"]) == [*OURS, "--log-verbose=1"]


@pytest.mark.parametrize(
    "flag",
    [
        *("--http-header-forward-pattern", "--http-header", "--http-h"),
        *("--grpc-header-forward-pattern", "--grpc-he"),
    ],
)
def test_a_pattern_of_ones_own_holds_beside_it(flag: str) -> None:
    [*ours, widened] = forwarding([f"{flag}=^x-(a|b)=c$"])
    assert ours == OURS
    name, _, pattern = widened.partition("=")
    assert name == flag
    for header in ("x-a=c", "x-b=c", CALLER, "HF-Triton-Caller"):
        assert re.search(pattern, header), header
    for header in ("x-c", f"x-{CALLER}", f"{CALLER}-x"):
        assert not re.search(pattern, header), header


def test_an_empty_pattern_is_none() -> None:
    assert forwarding(["--http-header-forward-pattern="])[-1] == OURS[0]


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models("demo")


@pytest.mark.threat("shared-prefix-timing")
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_callers_that_a_header_names_share_nothing(triton: Triton, protocol: str) -> None:
    module: Any = http_client if protocol == "http" else grpc_client
    with module.InferenceServerClient(getattr(triton, protocol)) as client:

        def ask(caller: str) -> None:
            text = module.InferInput("text_input", [1], "BYTES")
            text.set_data_from_numpy(np.array([PROMPT.encode()], dtype=np.object_))
            client.infer("demo", [text], headers={CALLER: caller}, parameters={"max_tokens": 1})

        def reused() -> float:
            return triton.metric(REUSED, model="demo")

        before = settled(reused)
        for number in range(FEW):
            ask(f"{protocol} {number}")
        assert settled(reused) == before
        for _ in range(ENOUGH):
            ask(f"{protocol} 0")
        assert eventually(lambda: reused() > before)
