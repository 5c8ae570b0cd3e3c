"""A streaming model changes and changes back while it is asked in every way: none is lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from generator.apply.session import ApplyOptions, Session
from generator.apply.target import Target, check
from tests.scenarios.endpoint import Model, joined
from tests.scenarios.reference import Reference
from tests.scenarios.triton_endpoints import GrpcEndpoint
from tests.support.triton import DEMO_MODEL, Triton, post, post_for_events, serving

pytestmark = [pytest.mark.server, pytest.mark.slow]

PROMPT, LENGTH = "Once", 12
MODELS_YAML = f"""\
models:
  - name: demo
    task: text-generation
    model: {DEMO_MODEL}
"""
CHANGED = MODELS_YAML + "    options: {max_queue_size: 99}\n"


@pytest.fixture
def triton(tmp_path: Path) -> Iterator[Triton]:
    with serving(MODELS_YAML, tmp_path) as running:
        yield running


def infer(triton: Triton) -> str:
    inputs = [
        {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [PROMPT]},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1], "data": [LENGTH]},
    ]
    asked = {"inputs": inputs, "outputs": [{"name": "text_output"}]}
    return str(post(triton.url("demo", "infer"), asked).body["outputs"][0]["data"][0])


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


class Callers:
    """One thread for each way to ask, on and on; ``answers`` counts what came of it."""

    def __init__(self, triton: Triton) -> None:
        self.answers: Counter[tuple[str, str]] = Counter()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(triton, way)) for way in WAYS]
        for thread in self._threads:
            thread.start()

    def _ask(self, triton: Triton, way: Callable[[Triton], str]) -> None:
        has_ended = False
        while not has_ended:
            has_ended = self._stop.is_set()  # asked once more: each way once at least
            try:
                answer = way(triton)
            except Exception as error:  # noqa: BLE001, an answer that counts
                answer = f"{type(error).__name__}: {error}"
            self.answers[way.__name__, answer] += 1

    def end(self) -> Counter[tuple[str, str]]:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.answers


def test_a_model_changes_and_changes_back_and_every_request_is_answered(
    triton: Triton, reference: Reference
) -> None:
    repository: Path = triton.server.repository
    config = repository.parent / "models.yaml"
    target = Target(triton.server.api, "the server")
    check(target, repository)
    callers = Callers(triton)
    try:
        config.write_text(CHANGED, encoding="utf-8")
        assert Session(repository, target, ApplyOptions()).apply(config) == 0
        assert triton.server.api.is_model_ready("demo_stream", "2")
        assert Session(repository, target, ApplyOptions()).roll_back() == 0
        assert triton.server.api.is_model_ready("demo_stream", "3")
    finally:
        config.write_text(MODELS_YAML, encoding="utf-8")
        answers = callers.end()
    expected = reference.text(PROMPT, LENGTH)
    assert set(answers) == {(way.__name__, expected) for way in WAYS}, answers
    print(answers)
