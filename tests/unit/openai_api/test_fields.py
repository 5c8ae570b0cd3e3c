"""docs/openai-api.md lists fields as the tables say by which requests are checked."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from hf_triton.ports.openai.child_process import OpenAiProcess
from hf_triton.ports.openai.routes import chat, tgi
from hf_triton.ports.openai.schema.body import Body
from hf_triton.ports.openai.schema.json_body import Check, ignored, schema_of
from tests.support.triton import free_ports
from tests.unit.openai_api.conftest import Starter

PAGE = Path(__file__).parents[3] / "docs" / "openai-api.md"


def rows(fields: Mapping[str, Check]) -> list[str]:
    """The table's: what a field's check takes."""
    alone = {name: schema_of(check).get("enum") for name, check in fields.items()}
    kinds = {
        "work": [name for name, one in alone.items() if one is None and fields[name] != ignored],
        "change nothing, with any value": [n for n, check in fields.items() if check == ignored],
        "are taken with this value alone": [
            name for name, one in alone.items() if one is not None and fields[name] not in _REFUSED
        ],
        "are refused, with what to send instead": [n for n in fields if fields[n] in _REFUSED],
    }
    shown = {
        name: f"`{name}` ({' or '.join(map(json.dumps, one)) or 'null'})"
        if one is not None and fields[name] not in _REFUSED
        else f"`{name}`"
        for name, one in alone.items()
    }
    return [
        f"| {kind} | {', '.join(shown[n] for n in sorted(found))} |"
        for kind, found in kinds.items()
    ]


BODIES = (chat.BODY, tgi.PARAMETERS)
_REFUSED = [
    check
    for body in BODIES
    for check in body.fields.values()
    if check.__qualname__.startswith("refused")
]


@pytest.mark.parametrize("body", BODIES, ids=["chat", "tgi"])
def test_the_page_lists_every_field(body: Body) -> None:
    table = "\n".join(rows(body.fields))
    assert table in PAGE.read_text(encoding="utf-8"), f"it should have\n{table}"


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
