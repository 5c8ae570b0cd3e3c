"""``hf-triton serve`` with more models than memory: each is loaded when it is asked for."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

from hf_triton.serving.apply.target import running_target
from hf_triton.tritonserver.listen import Listen
from tests.support.callers import asking
from tests.support.served import Served, started
from tests.support.triton import (
    DEMO_MODEL,
    ROOT,
    eventually,
    free_ports,
    get,
    post,
    post_for_events,
)

# Two of those that generate text do not fit together.
MODELS = f"""\
server: {{on_demand: {{memory_gib: 0.4, load_wait_s: 240}}}}
defaults: {{task: text-generation, model: {DEMO_MODEL}, load: on_demand}}
models:
  - {{name: hot, load: always}}
  - {{name: a}}
  - {{name: b, served_names: [other]}}
  - {{name: vectors, task: feature-extraction, model: {ROOT}/demo/embedding}}
  - {{name: by-hand, load: manual}}
"""
PROMPT, NUM_TOKENS = "Once upon a time", 12
NUM_CALLERS, NUM_APPLIES = 8, 2


@dataclass(frozen=True)
class Made:
    """The running command, with OpenAI's port and the folder of models.yaml."""

    served: Served
    openai_port: int
    folder: Path

    @property
    def listen(self) -> Listen:
        return self.served.listen


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder, port = tmp_path_factory.mktemp("on-demand"), free_ports().http_port
    (folder / "models.yaml").write_text(MODELS)
    options = (f"--openai-port={port}",)
    with started(folder, ("hf_triton.cli",), options, free_ports(), {}) as running:
        running.wait_for("Ctrl-C stops")
        yield Made(running, port, folder)


def url(made: Made, path: str) -> str:
    return f"http://127.0.0.1:{made.listen.http_port}/v2/models/{path}"


def states(made: Made) -> dict[str, str]:
    health = get(f"http://127.0.0.1:{made.listen.health_port}/ready").body
    found: dict[str, str] = health["on_demand"]
    return found


def generate(made: Made, model: str) -> Any:
    asked = {"text_input": PROMPT, "max_tokens": NUM_TOKENS}
    answer = post(url(made, f"{model}/generate"), asked)
    return answer.body.get("text_output", answer)


def stream(made: Made, model: str) -> str:
    asked = {"text_input": PROMPT, "max_tokens": NUM_TOKENS, "stream": True}
    status, events = post_for_events(url(made, f"{model}_stream/generate_stream"), asked)
    assert status == 200, events
    return "".join(event["text_output"] for event in events)


def over_grpc(made: Made, model: str) -> str:
    with InferenceServerClient(f"127.0.0.1:{made.listen.grpc_port}") as client:
        tensor = InferInput("text_input", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([PROMPT.encode()], dtype=object))
        parameters = {"max_tokens": NUM_TOKENS}
        answer = client.infer(model, [tensor], parameters=parameters)
        return str(answer.as_numpy("text_output")[0].decode())


def completion(made: Made, model: str) -> str:
    body = {"model": model, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0}
    port = made.openai_port
    answer = post(f"http://127.0.0.1:{port}/v1/completions", body)
    assert answer.status == 200, answer
    return str(answer.body["choices"][0]["text"])


def vector(made: Made) -> int:
    port = made.openai_port
    body = {"model": "vectors", "input": "x"}
    answer = post(f"http://127.0.0.1:{port}/v1/embeddings", body)
    return len(answer.body["data"][0]["embedding"])


def all_of(asks: list[Callable[[], object]]) -> list[object]:
    """Their answers, all asked at once."""
    found: list[object] = [None] * len(asks)

    def ask(number: int) -> None:
        found[number] = asks[number]()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def wrong_of(answers: list[list[object]], expected: object) -> list[object]:
    return [one for each in answers for one in each if one != expected]


def test_nothing_is_loaded_before_it_is_asked_for(made: Made) -> None:
    assert "serving 1 of 1 model and 3 on demand" in made.served.err
    assert set(states(made).values()) == {"asleep"}
    assert get(f"http://127.0.0.1:{made.listen.health_port}/ready").body["ready"]
    port = made.openai_port
    listed = get(f"http://127.0.0.1:{port}/v1/models").body["data"]
    of = {one["id"]: one.get("state") for one in listed}
    assert of.pop("hot") is None
    assert {"a", "b", "other", "vectors"} <= of.keys()
    assert set(of.values()) == {"asleep"}
    assert get(url(made, "a/ready")).status == 200
    with InferenceServerClient(f"127.0.0.1:{made.listen.grpc_port}") as client:
        assert client.is_model_ready("a")
        assert not client.is_model_ready("nobody")
    assert set(states(made).values()) == {"asleep"}


def test_every_port_waits_until_a_model_is_loaded_and_what_it_needs_goes(made: Made) -> None:
    expected = generate(made, "hot")
    assert expected
    ways = (generate, stream, over_grpc, completion)
    asks = [partial(way, made, model) for model in ("a", "b") for way in ways]
    found = all_of([*asks, partial(completion, made, "other"), partial(vector, made)])
    assert found[:-1] == [expected] * 9
    assert found[-1] == vector(made)
    loaded = {name for name, state in states(made).items() if state == "loaded"}
    assert not {"a", "b"} <= loaded
    assert " is unloaded to make room for " in made.served.err


def test_who_loads_by_hand_does_so(made: Made) -> None:
    asked = {"text_input": PROMPT, "max_tokens": NUM_TOKENS}
    assert post(url(made, "by-hand/generate"), asked).status == 404
    api = running_target(made.folder / "repository", None).api
    assert [api.load(part) for part in ("by-hand_stream", "by-hand")] == [None, None]
    assert generate(made, "by-hand") == generate(made, "hot")


def test_kills_lose_no_answer(made: Made) -> None:
    expected = generate(made, "hot")
    ways = (generate, stream, completion)
    asks = [partial(way, made, model) for model in ("a", "b") for way in ways]
    with asking(*asks) as answers:

        def is_loaded(name: str) -> bool:
            return bool(wrong_of(answers, expected)) or states(made)[name] == "loaded"

        killed: list[Callable[[], list[int]]] = [
            partial(made.served.stub_pids, "a_stream"),
            lambda: [made.served.tritonserver_pid()],
        ]
        for pids in killed:
            assert eventually(lambda pids=pids: bool(pids()), 120)  # type: ignore[misc]
            for pid in pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert eventually(partial(is_loaded, "a"), 240)
            assert eventually(partial(is_loaded, "b"), 240)
    assert wrong_of(answers, expected) == []


def with_sequences(num: int) -> str:
    """MODELS, with another option of those that generate text on demand."""
    option = f"options: {{max_num_seqs: {num}}}"
    return re.sub("name: ([ab])(?=[,}])", rf"name: \1, {option}", MODELS)


def apply(made: Made, models: str, *options: str) -> str:
    (made.folder / "models.yaml").write_text(models)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "hf_triton.cli", "apply", "--repository=repository", *options],
        cwd=made.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_applies_beside_loads_fail_no_request(made: Made) -> None:
    expected = generate(made, "hot")

    def ask(way: Callable[[Made, str], object], draw: random.Random) -> object:
        time.sleep(draw.random())
        return way(made, draw.choice("ab"))

    ways = (generate, stream, over_grpc, completion)
    asks = [
        partial(ask, way, random.Random(4 * seed + at))
        for seed in range(NUM_CALLERS // len(ways))
        for at, way in enumerate(ways)
    ]
    with asking(*asks) as answers:
        for count in range(NUM_APPLIES):
            apply(made, with_sequences(4 + count))
            time.sleep(2)
    assert wrong_of(answers, expected) == []
    apply(made, MODELS)


def test_loads_and_sizes_are_metrics(made: Made) -> None:
    def number(name: str) -> float:
        text = get(f"http://127.0.0.1:{made.listen.health_port}/metrics").body
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    assert number('hf_triton_model_loads_total{model="a"}') >= 1
    assert number('hf_triton_model_put_out_total{model="b",reason="room"}') >= 1
    assert number('hf_triton_model_load_wait_seconds_total{model="a"}') > 0
    assert number('hf_triton_on_demand_memory_bytes{model="a",device="cpu"}') > 2**27
    assert number('hf_triton_on_demand_memory_limit_bytes{device="cpu"}') == 0.4 * 2**30
    assert number('hf_triton_model_up{model="by-hand"}') == 1
