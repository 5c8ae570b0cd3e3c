"""docs/openai-api.md lists fields as the tables say by which requests are checked."""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from hf_triton.ports.openai.child_process import OpenAiProcess
from hf_triton.ports.openai.routes import chat, tgi
from hf_triton.ports.openai.schema.body import Body
from tests.support.triton import free_ports
from tests.unit.openai_api.conftest import Starter

PAGE = Path(__file__).parents[3] / "docs" / "openai-api.md"


@pytest.mark.parametrize("body", [chat.BODY, tgi.PARAMETERS], ids=["chat", "tgi"])
def test_the_page_lists_every_field(body: Body) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert not [name for name in body.fields if f"`{name}`" not in page]


def test_a_verbose_port_tells_the_names_that_are_left_out(
    starter: Starter, capfd: pytest.CaptureFixture[str]
) -> None:
    _, port = starter.triton()
    listen = replace(free_ports(), grpc_port=port, openai_port=free_ports().http_port)
    process = OpenAiProcess(listen, None, verbose=True)
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
