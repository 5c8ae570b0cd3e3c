"""Batches on a real server, by OpenAI's package and by ``hf-triton batch``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from generator.python_modules import run_module
from tests.support.served import Served, started
from tests.support.triton import DEMO_MODEL, eventually, free_ports

ALICE, BOB = "a" * 32, "b" * 32
KEYS = {"HF_TRITON_API_KEYS": f"alice {ALICE}\nbob {BOB}", "OMP_NUM_THREADS": "1"}
MODELS = f"""
server: {{batches: {{folder: kept, concurrent_requests: 4}}}}
models:
  - {{name: demo, task: text-generation, model: {DEMO_MODEL}}}
"""
CHAT: Final = "/v1/chat/completions"
NUM = 40


def lines(num: int, num_tokens: int, model: str = "demo") -> list[dict[str, Any]]:
    """Requests for a chat; those of every tenth line fail."""
    body = {"model": model, "max_tokens": num_tokens, "ignore_eos": True}
    said = [[{"role": "user", "content": f"I am number {n}"}] for n in range(num)]
    return [
        {"custom_id": f"line-{n}", "method": "POST", "url": CHAT}
        | {"body": {**body, "messages": one, "temperature": -1 if n % 10 == 9 else 0}}
        for n, one in enumerate(said)
    ]


def as_file(requests: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in requests)


@contextmanager
def serving(folder: Path, environment: Mapping[str, str] = KEYS) -> Iterator[Served]:
    (folder / "models.yaml").write_text(MODELS)
    listen = replace(free_ports(), openai_port=free_ports().http_port)
    with started(folder, ("hf_triton.cli",), (), listen, environment) as served:
        served.wait_for("Ctrl-C stops")
        yield served


def client(served: Served, key: str = ALICE) -> openai.OpenAI:
    url = f"http://{served.listen.address(served.listen.openai_port)}/v1"
    return openai.OpenAI(base_url=url, api_key=key)


def begun(api: openai.OpenAI, requests: list[dict[str, Any]]) -> Any:
    file = api.files.create(file=("in.jsonl", as_file(requests)), purpose="batch")
    assert (file.filename, file.bytes) == ("in.jsonl", len(as_file(requests)))
    assert api.files.content(file.id).read() == as_file(requests)
    return api.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"of": "a test"}
    )


def num_done(api: openai.OpenAI, batch: Any) -> int:
    counts = api.batches.retrieve(batch.id).request_counts
    return counts.completed + counts.failed if counts else 0


def ended(api: openai.OpenAI, batch: Any, status: str) -> Any:
    assert eventually(lambda: api.batches.retrieve(batch.id).status == status, 120)
    return api.batches.retrieve(batch.id)


def answers(api: openai.OpenAI, file_id: str | None) -> list[Any]:
    return [json.loads(one) for one in api.files.content(file_id or "").text.splitlines()]


def test_a_batch_goes_on_after_everything_was_killed(tmp_path: Path) -> None:
    with serving(tmp_path) as served, client(served) as api:
        batch = begun(api, lines(NUM, 100))
        assert batch.status == "validating"
        assert batch.metadata == {"of": "a test"}
        assert eventually(lambda: num_done(api, batch) >= 5, 120)
        served.signal(signal.SIGKILL)  # with which the kernel and the guard kill all others
        served.process.wait()
        assert served.leaves_nothing()
    with serving(tmp_path) as served, client(served) as api:
        assert 5 <= num_done(api, batch) < NUM
        batch = ended(api, batch, "completed")
        good, bad = answers(api, batch.output_file_id), answers(api, batch.error_file_id)
        named = [f"line-{n}" for n in range(NUM)]
        assert [one["custom_id"] for one in bad] == named[9::10]
        assert {one["response"]["body"]["error"]["param"] for one in bad} == {"temperature"}
        assert [one["custom_id"] for one in good] == [one for one in named if one[-1] != "9"]
        assert {one["response"]["body"]["usage"]["completion_tokens"] for one in good} == {100}
        assert batch.request_counts.to_dict() == {"total": NUM, "completed": 36, "failed": 4}
        body = lines(1, 100)[0]["body"]
        more = {"ignore_eos": body.pop("ignore_eos")}
        alone = api.chat.completions.create(**body, extra_body=more)
        assert good[0]["response"]["body"]["choices"][0]["message"]["content"] == (
            alone.choices[0].message.content
        )
        with client(served, BOB) as other, pytest.raises(openai.NotFoundError):
            other.batches.retrieve(batch.id)


def test_a_cancelled_batch_keeps_what_it_has(tmp_path: Path) -> None:
    with serving(tmp_path) as served, client(served) as api:
        batch = begun(api, lines(NUM, 400))
        assert eventually(lambda: num_done(api, batch) >= 1, 120)
        assert api.batches.cancel(batch.id).status == "cancelling"
        batch = ended(api, batch, "cancelled")
        assert 1 <= len(answers(api, batch.output_file_id)) < NUM
        with pytest.raises(openai.BadRequestError, match="has ended"):
            api.batches.cancel(batch.id)
        served.signal(signal.SIGTERM)
        assert served.exit_code() == 0
        assert served.leaves_nothing()


def test_the_verb_starts_a_server_and_asks_what_its_output_lacks(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(MODELS)
    (tmp_path / "in.jsonl").write_bytes(as_file(lines(NUM, 300)))
    output = tmp_path / "out.jsonl"
    command = run_module("hf_triton.cli", "batch", "in.jsonl", "-o", "out.jsonl")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as first:
        assert eventually(lambda: output.exists() and output.read_bytes().count(b"\n") >= 5, 180)
        first.kill()
    before = output.read_bytes()
    whole_lines = before[: before.rfind(b"\n") + 1]
    assert 5 <= whole_lines.count(b"\n") < NUM
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert found.returncode == 1, found.stderr
    assert found.stdout.decode() == f"out.jsonl: {NUM} answers, 4 of them errors\n"
    assert output.read_bytes().startswith(whole_lines)
    names = [json.loads(one)["custom_id"] for one in output.read_bytes().splitlines()]
    assert sorted(names) == sorted(f"line-{n}" for n in range(NUM))
