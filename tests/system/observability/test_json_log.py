"""``serve`` with its log in JSON: every line of stderr, from the first to the last."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.served import Served, serve
from tests.support.triton import free_ports, post

MODELS = """\
- {name: plain}
- {name: failing, options: {fail: "no: weights"}}
- {name: killed, options: {die: true}}
"""
KEYS = {"time", "level", "logger", "message", "source", "model", "request_id"}


def records(served: Served) -> list[dict[str, Any]]:
    """Each line of stderr; raises where one is no object."""
    found = [json.loads(line) for line in served.err.splitlines()]
    for record in found:
        assert {"time", "level", "logger", "message"} <= set(record) <= KEYS
        assert record["time"].endswith("Z")
        assert record["level"] in ("info", "warning", "error", "fatal")
    return found


def about(served: Served, model: str) -> list[dict[str, Any]]:
    return [record for record in records(served) if record.get("model") == model]


def test_every_line_of_a_servers_life_is_json(tmp_path: Path) -> None:
    settings = "{log_format: json}"
    listen = dataclasses.replace(free_ports(), openai_port=free_ports().http_port)
    with serve(tmp_path, MODELS, "--verbose", listen=listen, settings=settings) as served:
        served.wait_for("Ctrl-C stops")
        url = f"http://127.0.0.1:{listen.openai_port}/v1/completions"
        assert post(url, {"model": "plain", "prompt": "x"}).status == 400
        os.kill(served.stub_pid("plain"), signal.SIGKILL)
        served.wait_for("is ready again after")
        served.signal(signal.SIGTERM)
        assert served.exit_code() == 0

        assert [r["level"] for r in about(served, "failing") if r["logger"] == "hf-triton"] == [
            "error"
        ]
        assert any("died while loading" in r["message"] for r in about(served, "killed"))
        assert any(r["message"] == "plain prints" for r in records(served))
        assert {r["logger"] for r in records(served)} >= {"hf-triton", "tritonserver", "model"}
        assert records(served)[-1]["message"] == "stopped"
        results = [line for line in served.out.splitlines() if line.startswith("curl ")]
        assert results, "results stay as they are"


@pytest.mark.parametrize(
    "flag, setting, is_json",
    [
        (("--log-format=json",), "{log_format: text}", True),
        (("--log-format=text",), "{log_format: json}", False),
        ((), "{log_format: json}", True),
    ],
)
def test_an_error_that_ends_serve_is_json_too_and_the_flag_wins_over_the_yaml(
    tmp_path: Path, flag: tuple[str, ...], setting: str, is_json: bool
) -> None:
    models = "[{name: a, task: text-generation, model: org/a, streaming: false}]"
    (tmp_path / "models.yaml").write_text(f"server: {setting}\nmodels: {models}\n")
    (tmp_path / "model_repository").mkdir()
    (tmp_path / "model_repository" / "a").write_text("a file of the user's own")
    ports = (f"{flag}={port}" for flag, port in free_ports().triton_ports().items())
    done = subprocess.run(
        [sys.executable, "-m", "generator", "serve", *ports, *flag],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert "move your edits away" in lines[-1]
    assert all(line.startswith("{") == is_json for line in lines), done.stderr


def test_what_a_child_or_a_library_writes_is_json_too() -> None:
    program = (
        "import os, subprocess, sys; from hf_triton.tritonserver import json_log; "
        "json_log.start(); "
        "os.write(2, b'library\\xff\\n'); sys.stderr.write('half'); sys.stderr.flush(); "
        "subprocess.run(['sh', '-c', 'echo child >&2']); 1 / 0"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    found = [json.loads(line) for line in done.stderr.splitlines()]
    assert [record["message"] for record in found[:2]] == ["library\ufffd", "halfchild"]
    assert found[-1]["message"] == "ZeroDivisionError: division by zero"
    assert found[-1]["level"] == "error"
