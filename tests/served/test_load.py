"""Many requests at the same time on a real server: everyone gets exactly their own answer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from wire import Reply

from tests.scenarios.endpoint import Endpoint, Model, joined, rows
from tests.scenarios.reference import Reference
from tests.scenarios.served_models import is_batched
from tests.scenarios.triton_endpoints import GrpcEndpoint, HttpEndpoint
from tests.support.one_server import OneServer
from tests.support.triton import Triton, eventually

NUM_REQUESTS = 64
SECRET = "hf_SecretThatNobodyMaySee0123456789"
OPENINGS = ("Once upon a time", "I am going", "What is", "The old man", "Zoë 🙂", "My name is")


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models("demo", "batched", "tight")


def served(endpoint: Endpoint, name: str) -> Model:
    return Model(endpoint, name, batched=is_batched(name))


@dataclass(frozen=True)
class Asked:
    """One caller's request; each prompt has a number of its own in it."""

    prompt: str
    max_tokens: int
    echo: bool

    @property
    def options(self) -> dict[str, Any]:
        return {"max_tokens": self.max_tokens, "exclude_input_in_output": not self.echo}

    def expected(self, reference: Reference) -> str:
        text = reference.text(self.prompt, self.max_tokens)
        return self.prompt + text if self.echo else text


Caller = Callable[[Model, Asked], str]


def answered(reply: Reply) -> Reply:
    assert reply.ok, reply.error
    return reply


def ask_infer(model: Model, asked: Asked) -> str:
    how = "tensors" if asked.echo else "parameters"
    return answered(model.ask(how, asked.prompt, **asked.options)).text()


def ask_stream(model: Model, asked: Asked) -> str:
    return joined(model.engine.stream(asked.prompt, **asked.options))


def ask_rows(model: Model, asked: Asked) -> str:
    """As the second row of a client's batch."""
    texts, echoes = ["Hello", asked.prompt], [True, not asked.echo]
    request = rows(texts, max_tokens=[3, asked.max_tokens], exclude_input_in_output=echoes)
    return answered(model.infer(request)).texts()[1]


def ask_generate(model: Model, asked: Asked) -> str:
    status, answer = model.generate({"text_input": asked.prompt, **asked.options})
    assert status == 200, answer
    return str(answer["text_output"])


def ask_too_much(model: Model, asked: Asked) -> str:
    """A bad request before the good one, so that refusals and answers mix."""
    refused = model.ask("tensors", asked.prompt, max_tokens=100_000)
    assert refused.status == 400, refused
    assert asked.prompt not in refused.error
    return ask_infer(model, asked)


def leave_stream(model: Model, asked: Asked) -> str:
    request = model.streaming(asked.prompt, max_tokens=200)
    with model.endpoint.left_stream(model.engine.name, request) as first:
        return answered(first).text()


def cancel_call(model: Model, asked: Asked) -> str:
    with model.endpoint.cancelled_infer(model.name, model.by_tensors(asked.prompt, max_tokens=200)):
        time.sleep(0.05)
    return ""


def num_held(triton: Triton, name: str) -> float:
    """Sequences that run or wait, as ``/metrics`` tells once a second."""
    return sum(triton.metric(f"hf_triton_{state}", model=name) for state in ("running", "waiting"))


def prompts(count: int) -> list[Asked]:
    """Mixed lengths of prompt and answer."""
    rng = random.Random(20)
    return [
        Asked(
            prompt=f"{rng.choice(OPENINGS)} {number}{' and on' * rng.choice((0, 1, 5, 40))}",
            max_tokens=rng.choice((1, 4, 12, 32)),
            echo=rng.random() < 0.3,
        )
        for number in range(count)
    ]


def test_64_requests_and_streams_at_once_while_a_tenth_of_the_callers_leaves(
    triton: Triton, reference: Reference
) -> None:
    http, grpc = HttpEndpoint(triton), GrpcEndpoint(triton)
    callers: list[tuple[Caller, Endpoint, str]] = [
        (ask_stream, http, "demo"),
        (ask_stream, grpc, "demo"),
        (ask_generate, http, "demo"),
        (ask_infer, grpc, "demo"),
        (ask_too_much, http, "demo"),
        (ask_stream, grpc, "batched"),
        (ask_stream, http, "batched"),
        (ask_infer, http, "batched"),
        (ask_rows, grpc, "batched"),
    ]
    leavers: list[tuple[Caller, Endpoint, str]] = [
        *((leave_stream, grpc, "demo"), (cancel_call, grpc, "demo"), (leave_stream, http, "demo"))
    ]
    asked = prompts(NUM_REQUESTS)
    leaving = set(range(9, NUM_REQUESTS, 10))
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        waiting = []
        for number, one in enumerate(asked):
            ask, endpoint, name = (
                leavers[number // 10 % 3] if number in leaving else callers[number % len(callers)]
            )
            waiting.append(pool.submit(ask, served(endpoint, name), one))
        answers = [future.result() for future in waiting]

    expected = [one.expected(reference) for one in asked]
    wrong = [n for n in range(NUM_REQUESTS) if n not in leaving and answers[n] != expected[n]]
    assert not wrong, [(asked[n], answers[n], expected[n]) for n in wrong[:3]]
    assert eventually(lambda: num_held(triton, "demo") == 0), "a slot is still held"


@pytest.mark.parametrize("streaming", [False, True])
def test_requests_beyond_the_queue_are_refused_and_the_others_answered(
    triton: Triton, reference: Reference, streaming: bool
) -> None:
    model = served(GrpcEndpoint(triton), "tight")
    numbers = [f"Once {number}" for number in range(16)]
    busy = model.streaming("Once", max_tokens=400, min_tokens=400)
    requests = [model.by_tensors(prompt, max_tokens=16, stream=streaming) for prompt in numbers]
    with model.endpoint.left_stream(model.engine.name, busy) as first:
        assert first.ok, first.error
        if streaming:
            replies = model.endpoint.stream_together(model.engine.name, requests)
        else:
            replies = [[reply] for reply in model.infer_together(requests)]

    assert 0 < sum(not chunks[0].ok for chunks in replies) < 16
    for prompt, chunks in zip(numbers, replies, strict=True):
        if chunks[0].ok:
            assert joined(chunks) == reference.text(prompt, 16)
        else:
            [refused] = chunks
            assert refused.status == 503 or streaming
            assert "queue is full" in refused.error
            assert "max_queue_size 2" in refused.error


def test_unloading_answers_all_requests_and_loading_serves_again(
    triton: Triton, reference: Reference
) -> None:
    model = served(HttpEndpoint(triton), "tight")
    request = model.by_tensors("Once", max_tokens=200)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(model.infer, request) for _ in range(2)]
        time.sleep(0.2)
        assert triton.control(model.engine.name, "unload").status == 200
        statuses = {future.result().status for future in waiting}
    # Triton lets running requests end; 404 is for one that came after the unload.
    assert statuses <= {200, 404, 503}, "an answer or a refusal, but no hanging and no crash"

    assert triton.control(model.engine.name, "load").status == 200
    assert model.ask("tensors", "Once", max_tokens=5).text() == reference.text("Once", 5)


@pytest.mark.threat("texts-in-logs")
def test_no_prompt_reaches_the_servers_log(triton: Triton) -> None:
    model = served(GrpcEndpoint(triton), "batched")
    for options in ({"max_tokens": 2}, {"max_tokens": 0}, {"temperature": -1.0}):
        model.ask("tensors", SECRET, stop_words=[SECRET], **options)
        model.generate({"text_input": SECRET, **options})
    model.generate({"text_input": SECRET, "unknown": SECRET})
    model.ask("parameters", SECRET, **{SECRET: SECRET})
    model.ask("tensors", SECRET.encode() + b"\xff", max_tokens=2)

    log = "\n".join(triton.log)
    assert "loaded in" in log, "the log is really there"
    assert not [text for text in (SECRET, *OPENINGS) if text in log]
