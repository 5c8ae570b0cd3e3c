"""A streaming model changes and changes back while it is asked in every way: none is lost. Where it
is replaced with a gap, callers are told, then answered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from generator.errors import NoRoomError
from hf_triton.serving.apply.session import ApplyOptions, Session
from hf_triton.serving.apply.target import Target, check
from hf_triton.tritonserver.http_api import ServerApi
from perf.sweep.server.metrics import parse_metrics
from tests.scenarios.endpoint import Model, joined
from tests.scenarios.reference import Reference
from tests.scenarios.triton_endpoints import GrpcEndpoint
from tests.support.callers import asking
from tests.support.triton import (
    DEMO_MODEL,
    Answer,
    Triton,
    eventually,
    post,
    post_for_events,
    serving,
)

PROMPT, LENGTH = "Once", 12
MODELS_YAML = f"""\
models:
  - name: demo
    task: text-generation
    model: {DEMO_MODEL}
"""
CHANGED = MODELS_YAML + "    options: {max_queue_size: 99}\n"
_FREE = re.compile(r'(hf_triton_memory_bytes\{.*kind="free".*\}) .*')


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    with serving(MODELS_YAML, tmp_path_factory.mktemp("under_load")) as running:
        yield running


@pytest.fixture
def full_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models' own numbers, but no byte is free."""
    asked = ServerApi.metrics
    monkeypatch.setattr(ServerApi, "metrics", lambda api: _FREE.sub(r"\1 0", asked(api)))


def version(triton: Triton) -> int:
    """The one of the engine that answers."""
    (found,) = (
        int(entry.version)
        for entry in triton.server.api.index()
        if (entry.model, entry.state) == ("demo_stream", "READY")
    )
    return found


def slots_by_version(triton: Triton) -> dict[str, float]:
    """As /metrics has them."""
    samples = parse_metrics(triton.server.api.metrics())
    return {s.labels["version"]: s.value for s in samples if s.name == "hf_triton_kv_slots"}


def infer_answer(triton: Triton) -> Answer:
    inputs = [
        {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [PROMPT]},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1], "data": [LENGTH]},
    ]
    asked = {"inputs": inputs, "outputs": [{"name": "text_output"}]}
    return post(triton.url("demo", "infer"), asked)


def infer(triton: Triton) -> str:
    return str(infer_answer(triton).body["outputs"][0]["data"][0])


def generate(triton: Triton) -> str:
    body = {"text_input": PROMPT, "max_tokens": LENGTH}
    return str(post(triton.url("demo", "generate"), body).body["text_output"])


def generate_stream(triton: Triton) -> str:
    body = {"text_input": PROMPT, "max_tokens": LENGTH, "stream": True}
    status, events = post_for_events(triton.url("demo_stream", "generate_stream"), body)
    assert status == 200
    return "".join(event["text_output"] for event in events)


def grpc(triton: Triton) -> str:
    model = Model(GrpcEndpoint(triton), "demo", batched=False)
    return model.ask("tensors", PROMPT, max_tokens=LENGTH).text()


def grpc_stream(triton: Triton) -> str:
    model = Model(GrpcEndpoint(triton), "demo", batched=False)
    return joined(model.engine.stream(PROMPT, max_tokens=LENGTH))


WAYS: list[Callable[[Triton], str]] = [infer, generate, generate_stream, grpc, grpc_stream]


def test_a_model_changes_and_changes_back_and_every_request_is_answered(
    triton: Triton, reference: Reference
) -> None:
    repository: Path = triton.server.repository
    config = repository.parent / "models.yaml"
    target = Target(triton.server.api, "the server")
    check(target, repository)
    try:
        with asking(*(partial(way, triton) for way in WAYS)) as answers:
            config.write_text(CHANGED, encoding="utf-8")
            assert Session(repository, target, ApplyOptions()).apply(config) == 0
            assert version(triton) == 2
            slots = slots_by_version(triton)
            assert slots.pop("1") == 0
            assert slots["2"] > 0
            assert Session(repository, target, ApplyOptions()).roll_back() == 0
            assert version(triton) == 3
    finally:
        config.write_text(MODELS_YAML, encoding="utf-8")
    assert [set(found) for found in answers] == [{reference.text(PROMPT, LENGTH)}] * len(WAYS)


IN_THE_GAP = {
    "the model is being unloaded: try again",
    "no engine runs that could answer: load the model demo_stream",
    "the engine demo_stream went away before it answered: try again",
}


def test_callers_get_503_in_the_gap_and_answers_before_and_after(
    triton: Triton, full_machine: None
) -> None:
    config = triton.server.repository.parent / "models.yaml"
    target = Target(triton.server.api, "the server")
    lines: list[str] = []
    statuses: list[int] = []  # in order, each once until it changes
    errors: set[str] = set()

    def ask() -> None:
        answer = infer_answer(triton)
        if statuses[-1:] != [answer.status]:
            statuses.append(answer.status)
        if answer.status != 200:
            errors.add(answer.body["error"])

    def apply(*, allow_gap: bool) -> int:
        options = ApplyOptions(allow_gap=allow_gap)
        session = Session(triton.server.repository, target, options, lines.append, lines.append)
        return session.apply(config)

    before = version(triton)
    config.write_text(CHANGED, encoding="utf-8")
    with pytest.raises(NoRoomError):
        apply(allow_gap=False)
    assert version(triton) == before
    (told,) = [line for line in lines if "no room" in line]
    (size,) = map(float, re.findall(r"needs ([0-9.]+) GiB on cpu", told))
    assert 0.1 < size < 2, told  # Python, torch, and a small model
    with asking(ask):
        assert eventually(lambda: statuses == [200])
        assert apply(allow_gap=True) == 0
    assert version(triton) == before + 1
    assert statuses == [200, 503, 200], (statuses, errors)
    assert errors <= IN_THE_GAP, errors
