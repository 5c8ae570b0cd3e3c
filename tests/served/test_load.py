"""Many requests at the same time on a real server: everyone gets exactly their own answer."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Asked:
    """What one caller sends; each prompt has a number of its own in it."""

    prompt: str
    max_tokens: int
    echo: bool

    def expected(self, reference: Reference) -> str:
        text = reference.text(self.prompt, self.max_tokens)
        return self.prompt + text if self.echo else text


Caller = Callable[[Asked], str]


def ask_infer(endpoint: Endpoint, name: str) -> Caller:
    """By a client's tensors, or parameters for every other caller."""
    model = Model(endpoint, name, batched=is_batched(name))

    def ask(asked: Asked) -> str:
        how = "tensors" if asked.echo else "parameters"
        options = {"max_tokens": asked.max_tokens, "exclude_input_in_output": not asked.echo}
        return answered(model.ask(how, asked.prompt, **options)).text()

    return ask


def ask_stream(endpoint: Endpoint, name: str) -> Caller:
    """Chunk by chunk, by gRPC or as server-sent events."""
    model = Model(endpoint, name, batched=is_batched(name)).engine

    def ask(asked: Asked) -> str:
        options = {"max_tokens": asked.max_tokens, "exclude_input_in_output": not asked.echo}
        return joined(model.stream(asked.prompt, **options))

    return ask


def leave_stream(endpoint: Endpoint, name: str) -> Caller:
    """Goes away after the first chunk."""
    model = Model(endpoint, name, batched=is_batched(name)).engine

    def ask(asked: Asked) -> str:
        request = model.streaming(asked.prompt, max_tokens=200)
        with endpoint.left_stream(model.name, request) as first:
            return answered(first).text()

    return ask


def cancel_call(endpoint: Endpoint, name: str) -> Caller:
    """Cancels before there is an answer, or beside it."""
    model = Model(endpoint, name, batched=is_batched(name))

    def ask(asked: Asked) -> str:
        request = model.by_tensors(asked.prompt, max_tokens=200)
        with endpoint.cancelled_infer(name, request):
            time.sleep(0.05)
        return ""

    return ask


def ask_rows(endpoint: Endpoint, name: str) -> Caller:
    """As the second row of a client's batch."""

    def ask(asked: Asked) -> str:
        request = rows(
            ["Hello", asked.prompt],
            max_tokens=[3, asked.max_tokens],
            exclude_input_in_output=[True, not asked.echo],
        )
        return answered(endpoint.infer(name, request)).texts()[1]

    return ask


def ask_generate(endpoint: Endpoint, name: str) -> Caller:
    def ask(asked: Asked) -> str:
        options = {"max_tokens": asked.max_tokens, "exclude_input_in_output": not asked.echo}
        status, answer = endpoint.generate(name, {"text_input": asked.prompt, **options})
        assert status == 200, answer
        return str(answer["text_output"])

    return ask


def ask_too_much(endpoint: Endpoint, name: str) -> Caller:
    """A bad request before the good one, so that refusals and answers mix."""
    ask_well = ask_infer(endpoint, name)
    model = Model(endpoint, name, batched=is_batched(name))

    def ask(asked: Asked) -> str:
        refused = model.ask("tensors", asked.prompt, max_tokens=100_000)
        assert refused.status == 400, refused
        assert asked.prompt not in refused.error
        return ask_well(asked)

    return ask


def num_held(triton: Triton, name: str) -> float:
    """Sequences that run or wait, as ``/metrics`` tells once a second."""
    return sum(triton.metric(f"hf_triton_{state}", model=name) for state in ("running", "waiting"))


def answered(reply: Reply) -> Reply:
    assert reply.ok, reply.error
    return reply


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


def all_at_once(callers: Sequence[Caller], asked: Sequence[Asked]) -> list[str]:
    with ThreadPoolExecutor(len(asked)) as pool:
        waiting = [
            pool.submit(callers[number % len(callers)], one) for number, one in enumerate(asked)
        ]
        return [future.result() for future in waiting]


def test_64_requests_and_streams_at_once_while_a_tenth_of_the_callers_leaves(
    triton: Triton, reference: Reference
) -> None:
    http, grpc = HttpEndpoint(triton), GrpcEndpoint(triton)
    callers = [
        ask_stream(http, "demo"),
        ask_stream(grpc, "demo"),
        ask_generate(http, "demo"),
        ask_infer(grpc, "demo"),
        ask_too_much(http, "demo"),
        ask_stream(grpc, "batched"),
        ask_stream(http, "batched"),
        ask_infer(http, "batched"),
        ask_rows(grpc, "batched"),
    ]
    leavers = [leave_stream(grpc, "demo"), cancel_call(grpc, "demo"), leave_stream(http, "demo")]
    asked = prompts(NUM_REQUESTS)
    leaving = set(range(9, NUM_REQUESTS, 10))
    chosen = [
        leavers[number // 10 % 3] if number in leaving else callers[number % len(callers)]
        for number in range(NUM_REQUESTS)
    ]

    answers = all_at_once(chosen, asked)

    expected = [one.expected(reference) for one in asked]
    wrong = [n for n in range(NUM_REQUESTS) if n not in leaving and answers[n] != expected[n]]
    assert not wrong, [(asked[n], answers[n], expected[n]) for n in wrong[:3]]
    assert eventually(lambda: num_held(triton, "demo") == 0), "a slot is still held"


@contextlib.contextmanager
def running(triton: Triton) -> Iterator[None]:
    """Keeps the one slot of ``tight`` busy, so that its queue is all that others find."""
    model = Model(GrpcEndpoint(triton), "tight", batched=False)
    request = model.streaming("Once", max_tokens=1000, min_tokens=1000)
    with model.endpoint.left_stream(model.engine.name, request) as first:
        assert first.ok, first.error
        yield


@pytest.mark.parametrize("endpoint", [GrpcEndpoint, HttpEndpoint])
def test_requests_beyond_the_queue_get_503_and_the_others_their_answers(
    triton: Triton, reference: Reference, endpoint: Callable[[Triton], Endpoint]
) -> None:
    model = Model(endpoint(triton), "tight", batched=False)
    numbers = [f"Once {number}" for number in range(16)]

    with running(triton):
        replies = model.infer_together(
            [model.by_tensors(prompt, max_tokens=48) for prompt in numbers]
        )

    assert {reply.status for reply in replies} == {200, 503}
    for prompt, reply in zip(numbers, replies, strict=True):
        if reply.ok:
            assert reply.text() == reference.text(prompt, 48)
        else:
            assert "queue is full" in reply.error
            assert "max_queue_size 2" in reply.error
    assert model.ask("tensors", "Once", max_tokens=5).text() == reference.text("Once", 5)


def test_streams_beyond_the_queue_are_refused_and_the_others_end(
    triton: Triton, reference: Reference
) -> None:
    model = Model(GrpcEndpoint(triton), "tight", batched=False).engine
    requests = [model.streaming(f"Once {number}", max_tokens=48) for number in range(16)]

    with running(triton):
        streams = model.endpoint.stream_together(model.name, requests)

    refused = [chunks for chunks in streams if not chunks[0].ok]
    assert 0 < len(refused) < 16
    assert all(len(chunks) == 1 and "queue is full" in chunks[0].error for chunks in refused)
    for number, chunks in enumerate(streams):
        if chunks not in refused:
            assert joined(chunks) == reference.text(f"Once {number}", 48)


@pytest.mark.parametrize("folder", ["tight", "tight_stream"])
def test_unloading_answers_all_requests_and_loading_serves_again(
    triton: Triton, reference: Reference, folder: str
) -> None:
    model = Model(HttpEndpoint(triton), "tight", batched=False)
    request = model.by_tensors("Once", max_tokens=200)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(model.infer, request) for _ in range(2)]
        time.sleep(0.2)
        assert triton.control(folder, "unload").status == 200
        statuses = {future.result().status for future in waiting}
    # Triton lets running requests end; 404 is for one that came after the unload.
    assert statuses <= {200, 404, 503}, "an answer or a refusal, but no hanging and no crash"

    assert triton.control(folder, "load").status == 200
    assert model.ask("tensors", "Once", max_tokens=5).text() == reference.text("Once", 5)


@pytest.mark.threat("texts-in-logs")
@pytest.mark.parametrize("name", ["demo", "batched", "padded"])
def test_no_prompt_reaches_the_servers_log(
    one_server: OneServer, triton: Triton, name: str
) -> None:
    one_server.with_models(name)
    model = Model(GrpcEndpoint(triton), name, batched=is_batched(name))
    for options in ({"max_tokens": 2}, {"max_tokens": 0}, {"temperature": -1.0}):
        model.ask("tensors", SECRET, **options)
        model.ask("tensors", SECRET, stop_words=[SECRET], **options)
        model.generate({"text_input": SECRET, **options})
    model.generate({"text_input": SECRET, "unknown": SECRET})
    model.ask("parameters", SECRET, **{SECRET: SECRET})
    model.ask("tensors", SECRET.encode() + b"\xff", max_tokens=2)

    log = "\n".join(triton.log)
    assert "loaded in" in log, "the log is really there"
    assert SECRET not in log
    assert not [text for text in OPENINGS if text in log]
