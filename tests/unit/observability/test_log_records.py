"""What becomes of a line of text where the log is JSON."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from hf_triton.tritonserver.json_log import record, to_json

NOW = datetime(2026, 11, 21, 18, 5, 1, 234567, tzinfo=timezone(timedelta(hours=1)))
TRITON = "1120 11:05:01.464615 4596"
OTLP = "[Error] File: /tmp/build/otlp/src/otlp_http_client.cc:200 [OTLP HTTP Client] no answer"


@pytest.mark.parametrize(
    "line, level_and_logger, more",
    [
        (
            f'I{TRITON} model_lifecycle.cc:472] "loading: demo:1"',
            "info tritonserver",
            {"message": "loading: demo:1", "source": "model_lifecycle.cc:472"},
        ),
        (
            f'E{TRITON} engine.py:60] "demo: [request id: r-7] a request failed: KeyError"',
            "error model",
            {
                "message": "demo: [request id: r-7] a request failed: KeyError",
                "source": "engine.py:60",
                "model": "demo",
                "request_id": "r-7",
            },
        ),
        (
            f'W{TRITON} model.py:6] "over\\ntwo lines"',
            "warning model",
            {"message": "over\ntwo lines", "source": "model.py:6"},
        ),
        (
            f"E{TRITON} model_lifecycle.cc:642] \"failed to load 'x': model 'demo' is broken\"",
            "error tritonserver",
            {
                "message": "failed to load 'x': model 'demo' is broken",
                "source": "model_lifecycle.cc:642",
                "model": "demo",
            },
        ),
        (
            "E0000 00:00:1795.5 1234 chttp2.cc:12] Failed to bind",
            "error tritonserver",
            {"message": "Failed to bind", "source": "chttp2.cc:12"},
        ),
        (
            "hf-triton: demo is ready after 1.0 s; still loading: other",
            "info hf-triton",
            {"message": "demo is ready after 1.0 s; still loading: other", "model": "demo"},
        ),
        (
            "hf-triton: model 'demo' failed to load: no weights",
            "error hf-triton",
            {"message": "model 'demo' failed to load: no weights", "model": "demo"},
        ),
        (
            "hf-triton: [request id: 7] the OpenAI API failed at a request: KeyError",
            "error hf-triton",
            {
                "message": "[request id: 7] the OpenAI API failed at a request: KeyError",
                "request_id": "7",
            },
        ),
        (
            OTLP,
            "error opentelemetry",
            {"message": "[OTLP HTTP Client] no answer", "source": "otlp_http_client.cc:200"},
        ),
        ("what a model prints", "info output", {}),
        ("Traceback (most recent call last):", "error output", {}),
        ("ValueError: x", "error output", {}),
    ],
)
def test_a_line_becomes_a_record(line: str, level_and_logger: str, more: dict[str, str]) -> None:
    level, logger = level_and_logger.split()
    found = record(line, NOW)
    assert found.pop("time") == "2026-11-21T17:05:01.234Z"
    assert found == {"message": line, "level": level, "logger": logger, **more}


@pytest.mark.threat("forged-log-lines")
@pytest.mark.parametrize(
    "line", ['"', '{"a": 1}', "\x1b[31m", f'I{TRITON} x.py:1] "\\ud800"', "naïve 猫", "\ufffd", ""]
)
def test_every_line_is_one_object_on_one_line(line: str) -> None:
    text = to_json(line, NOW)
    assert "\n" not in text
    assert set(json.loads(text)) >= {"time", "level", "logger", "message"}
    text.encode()
