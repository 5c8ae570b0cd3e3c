"""Streams of a served model whose processes are killed: each ends as if nothing had happened."""

from __future__ import annotations

import json
import operator
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput, InferResult

from tests.support.served import Served, started
from tests.support.triton import DEMO_MODEL, eventually, free_ports, get, post, post_for_events

MODELS = f"models: [{{name: demo, task: text-generation, model: {DEMO_MODEL}}}]\n"
NUM_TOKENS, NUM_KILLS = 80, 4
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "string", "minLength": 70, "maxLength": 90}},
        "required": ["a"],
        "additionalProperties": False,
    }
)
SAMPLED = {"temperature": 1.0, "seed": 7}
WAYS: list[dict[str, Any]] = [
    {},
    {**SAMPLED, "return_logprobs": True, "return_cumulative_logprob": True},
    {**SAMPLED, "n": 2, "frequency_penalty": 0.7, "return_token_ids": True},
    {"repetition_penalty": 1.3, "stop_words": ["zebra", " the sea"], "ignore_eos": True},
    {**SAMPLED, "json_schema": SCHEMA},
]
CHATS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": True, "top_logprobs": 2},
    {**SAMPLED, "n": 2, "presence_penalty": 0.5},
    {
        **SAMPLED,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": json.loads(SCHEMA)},
        },
    },
]
Told = dict[str, list[Any]]


def over_http(served: Served, way: dict[str, Any]) -> Told:
    url = f"http://127.0.0.1:{served.listen.http_port}/v2/models/demo_stream/generate_stream"
    asked = {"text_input": "Once upon", "max_tokens": NUM_TOKENS, "stream": True}
    status, events = post_for_events(url, {**asked, **way, "return_num_output_tokens": True})
    assert status == 200, events
    told: Told = {}
    for event in events:
        assert "error" not in event, event
        for name, value in event.items():
            told.setdefault(name, []).append(value)
    return joined(told)


def joined(told: Told) -> Told:
    """Pieces put together: how a stream is cut into pieces depends on how fast it is read."""
    found: Told = {}
    for name, values in told.items():
        rows = [value if isinstance(value, list) else [value] for value in values]
        columns = list(zip(*rows, strict=True))
        if name in ("finish_reason", "model_version", "model_name"):
            found[name] = [column[-1] for column in columns]
        elif name == "num_output_tokens":
            found[name] = [sum(column) for column in columns]
        elif name in ("logprobs", "token_ids"):
            tokens = [[one for text in column for one in json.loads(text)] for column in columns]
            found[name] = [
                [list(one) if isinstance(one, dict) else one for one in row] for row in tokens
            ]
        elif name == "text_output":
            found[name] = ["".join(column) for column in columns]
    return found


def over_grpc(served: Served, way: dict[str, Any]) -> str:
    answers: queue.Queue[tuple[InferResult | None, Exception | None]] = queue.Queue()
    client = InferenceServerClient(f"127.0.0.1:{served.listen.grpc_port}")
    client.start_stream(lambda result, error: answers.put((result, error)))
    tensors = [InferInput("text_input", [1], "BYTES"), InferInput("stream", [1], "BOOL")]
    tensors[0].set_data_from_numpy(np.array([b"Once upon"], dtype=object))
    tensors[1].set_data_from_numpy(np.array([True]))
    asked = json.dumps({"max_tokens": NUM_TOKENS, **way})
    client.async_stream_infer(
        "demo_stream",
        tensors,
        enable_empty_final_response=True,
        parameters={"sampling_parameters": asked},
    )
    text = ""
    while True:
        result, error = answers.get(timeout=300)
        assert error is None, error
        assert result is not None
        found = result.as_numpy("text_output")
        text += "" if found is None else "".join(one.decode() for one in found.reshape(-1))
        if result.get_response().parameters["triton_final_response"].bool_param:
            client.stop_stream()
            client.close()
            return text


def over_openai(served: Served, port: int, way: dict[str, Any]) -> list[Any]:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": NUM_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        **way,
    }
    answer = post(f"http://127.0.0.1:{port}/v1/chat/completions", body)
    assert answer.status == 200, answer
    *lines, last = [one.removeprefix("data: ") for one in answer.body.split("\n\n") if one]
    assert last == "[DONE]", answer.body[-300:]
    texts = {0: "", 1: ""}
    reasons, tokens, usage = dict[int, str](), list[Any](), None
    for event in map(json.loads, lines):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
            if choice["finish_reason"]:
                reasons[choice["index"]] = choice["finish_reason"]
            told = (choice.get("logprobs") or {}).get("content") or []
            tokens += [(one["token"], len(one["top_logprobs"])) for one in told]
    assert usage, lines[-1]
    return [texts, reasons, tokens, usage["completion_tokens"], usage["prompt_tokens"]]


def kill(served: Served, kind: str) -> None:
    pids = [served.tritonserver_pid()] if kind == "server" else served.stub_pids(kind)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, int]]:
    folder, port = tmp_path_factory.mktemp("streams"), free_ports().http_port
    (folder / "models.yaml").write_text(MODELS)
    arguments = (f"--openai-port={port}",)
    with started(folder, ("hf_triton.cli",), arguments, free_ports(), {}) as running:
        running.wait_for("Ctrl-C stops")
        yield running, port


def test_streams_go_on_whatever_is_killed(served: tuple[Served, int]) -> None:
    running, port = served
    draw = random.Random(1)
    asks: list[Callable[[], object]] = [
        *(partial(over_http, running, way) for way in WAYS),
        *(partial(over_grpc, running, way) for way in ({}, SAMPLED)),
        *(partial(over_openai, running, port, way) for way in CHATS),
    ]
    expected = [ask() for ask in asks]
    ready_url = f"http://127.0.0.1:{running.listen.http_port}/v2/models/demo_stream/ready"

    def is_ready() -> bool:
        return get(ready_url).status == 200

    is_over, wrong, num_asked = threading.Event(), list[object](), [0] * len(asks)

    def ask_on(number: int) -> None:
        while not is_over.is_set():
            try:
                answer = asks[number]()
            except (AssertionError, OSError, queue.Empty) as error:
                answer = error
            num_asked[number] += 1
            if answer != expected[number]:
                wrong.append((number, answer, expected[number]))
                return

    def all_answered_since(before: list[int]) -> bool:
        return bool(wrong) or all(map(operator.lt, before, num_asked))

    callers = [threading.Thread(target=ask_on, args=(number,)) for number in range(len(asks))]
    for caller in callers:
        caller.start()
    kinds = draw.sample(["demo_stream"] * (NUM_KILLS - 1) + ["server"], NUM_KILLS)
    for number, kind in enumerate(kinds):
        if number % 2 == 0:  # a stream that gets no further between four kills is refused
            assert eventually(partial(all_answered_since, list(num_asked)), 300)
        time.sleep(draw.uniform(0.3, 3))
        assert eventually(is_ready, 300)  # each kill of a load delays the next one
        time.sleep(draw.uniform(0, 1))
        kill(running, kind)
    is_over.set()
    for caller in callers:
        caller.join()
    assert wrong == []
    journals = f"hf_triton_*_{running.listen.http_port}_left_*.told"
    assert eventually(lambda: not list(Path("/dev/shm").glob(journals)), 10)
