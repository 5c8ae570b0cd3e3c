"""The scenarios of text generation with vLLM behind them: what holds for our engines holds here."""

from __future__ import annotations

import functools
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hf_triton.tritonserver.stubs import find_stubs
from tests.scenarios.endpoint import Model
from tests.scenarios.metrics import ReadMetric
from tests.scenarios.reference import Reference
from tests.scenarios.table import classes, give_models, model_behind
from tests.support.triton import Triton, eventually

PROMPTS = ("Once upon a time", "The capital of France is", "How are you?", "She said", "I am going")


globals().update(classes("vllm"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    give_models(metafunc, "http demo, grpc batched")


@pytest.fixture
def model(triton: Triton, request: pytest.FixtureRequest) -> Model:
    return model_behind(triton, request.param)


@pytest.fixture
def read_metric(triton: Triton, model: Model) -> ReadMetric:
    return functools.partial(triton.metric, model=model.name)


def test_log_probabilities_are_of_the_tokens_that_a_grammar_leaves(triton: Triton) -> None:
    model = model_behind(triton, "http demo")
    reply = model.sample("I am going", choice=["zebra"], logprobs=1, max_tokens=20)
    assert reply.texts() == ["zebra"]
    assert reply.numbers("cumulative_logprob")[0] <= 0


def test_together_requests_get_the_tokens_that_they_get_alone(
    model: Model, reference: Reference
) -> None:
    asked = [(prompt, 8 + 8 * number) for number, prompt in enumerate(PROMPTS)] * 4
    with ThreadPoolExecutor(len(asked)) as pool:
        replies = pool.map(lambda one: model.ask("tensors", one[0], max_tokens=one[1]), asked)
    assert [reply.text() for reply in replies] == [reference.text(*one) for one in asked]


def test_a_model_that_was_killed_leaves_no_process_of_vllm(triton: Triton) -> None:
    """The last test: the model is gone afterwards."""
    [stub] = [
        stub.pid
        for stub in find_stubs(os.getpgid(triton.server.pid))
        if stub.model == "tight_stream"
    ]
    below = descendants(stub)
    assert len(below) >= 2, "vLLM's engine and a worker"
    os.kill(stub, signal.SIGKILL)
    assert eventually(lambda: not any(map(lives, below)), 60)


def descendants(pid: int) -> list[int]:
    """Every process below one."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return children + [each for child in children for each in descendants(child)]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
