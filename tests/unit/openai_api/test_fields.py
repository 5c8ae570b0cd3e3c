"""Names of fields that are left out are told."""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import replace

import pytest

from hf_triton.ports.child_process import proxy
from hf_triton.ports.settings import OpenAiPort
from tests.support.triton import free_ports
from tests.unit.openai_api.conftest import Starter


def test_a_verbose_port_tells_the_names_that_are_left_out(
    starter: Starter, capfd: pytest.CaptureFixture[str]
) -> None:
    _, port = starter.triton()
    listen = replace(free_ports(), grpc_port=port, openai_port=free_ports().http_port)
    openai = OpenAiPort(listen.openai_port, listen.triton_grpc, verbose=True)
    process = proxy(listen, openai=openai)
    process.start()
    try:
        body = {"model": "echo", "prompt": "a", "from_elsewhere": "secret"}
        url = f"http://{listen.address(listen.openai_port)}/v1/completions"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60):
            told = capfd.readouterr().err
    finally:
        process.begin_stop()
        process.end(time.monotonic() + 5)
    assert "1 fields were left out: from_elsewhere" in told
    assert "secret" not in told
