"""What callers use over every port of a real server: counted on /metrics, and held to limits."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from tests.support.served import Served, started
from tests.support.triton import DEMO_MODEL, eventually, free_ports

ALICE, BOB = "a" * 32, "b" * 32
KEYS = f"alice {ALICE}\nbob {BOB} tokens_per_minute=40"
MODELS = f"""
models:
  - {{name: demo, task: text-generation, model: {DEMO_MODEL}}}
  - {{name: vectors, task: feature-extraction, model: {DEMO_MODEL.parent / "embedding"}}}
"""
ENDLESS: dict[str, Any] = {"model": "demo", "prompt": "I am", "extra_body": {"ignore_eos": True}}
PROMPT_TOKENS = 2  # of "I am"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("uses")
    (folder / "models.yaml").write_text(MODELS)
    listen = replace(free_ports(), openai_port=free_ports().http_port)
    environment = {"HF_TRITON_API_KEYS": KEYS, "OMP_NUM_THREADS": "1"}
    with started(folder, ("hf_triton.cli",), (), listen, environment) as running:
        running.wait_for("Ctrl-C stops")
        yield running


def client(served: Served, key: str) -> openai.OpenAI:
    url = f"http://{served.listen.address(served.listen.openai_port)}/v1"
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0)


def generate(served: Served, key: str, **fields: Any) -> int:
    """The status of Triton's own path."""
    url = f"http://{served.listen.address(served.listen.http_port)}/v2/models/demo/generate"
    body = json.dumps({"text_input": "I am", "ignore_eos": True, **fields}).encode()
    asked = urllib.request.Request(url, body, {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def infer(served: Served, key: str) -> None:
    """Over gRPC; the answer has the text alone."""
    text = grpc_client.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"I am"], dtype=np.object_))
    given: dict[str, Any] = {"parameters": {"max_tokens": 7, "ignore_eos": True}}
    given["headers"] = {"authorization": f"Bearer {key}"}
    with grpc_client.InferenceServerClient(served.listen.address(served.listen.grpc_port)) as door:
        door.infer(
            "demo", [text], outputs=[grpc_client.InferRequestedOutput("text_output")], **given
        )


def uses(served: Served) -> dict[str, float]:
    """Alice's, by the middle of the metrics' names."""
    url = f"http://{served.listen.address(served.listen.metrics_port)}/metrics"
    with urllib.request.urlopen(url, timeout=10) as found:
        lines = found.read().decode().splitlines()
    told = [line.split() for line in lines if '{caller="alice"}' in line]
    return {n.split("_caller_")[1].partition("_total")[0]: float(value) for n, value in told}


def whole(served: Served) -> None:
    with client(served, ALICE) as api:
        api.completions.create(**ENDLESS, max_tokens=5)


def whole_stream(served: Served) -> None:
    with client(served, ALICE) as api:
        assert list(api.completions.create(**ENDLESS, max_tokens=9, stream=True))


def left_stream(served: Served) -> None:
    with (
        client(served, ALICE) as api,
        api.completions.create(**ENDLESS, max_tokens=900, stream=True) as chunks,
    ):
        for _ in range(5):
            next(chunks)


@pytest.mark.parametrize(
    "ask, least, most",
    [
        (whole, 5, 5),
        (whole_stream, 9, 9),
        (left_stream, 5, 600),
        (lambda served: generate(served, ALICE, max_tokens=6), 6, 6),
        (lambda served: infer(served, ALICE), 7, 7),
    ],
)
def test_a_key_s_tokens_count_at_every_port(
    ask: Callable[[Served], object], least: int, most: int, served: Served
) -> None:
    before = uses(served)
    ask(served)

    def grown(name: str) -> float:
        return uses(served)[name] - before[name]

    assert eventually(lambda: grown("generated_tokens") > 0)
    assert least <= grown("generated_tokens") <= most
    assert (grown("prompt_tokens"), grown("requests")) == (PROMPT_TOKENS, 1)


def test_the_tokens_of_texts_count_as_a_prompts(served: Served) -> None:
    before = uses(served)["prompt_tokens"]
    with client(served, ALICE) as api:
        usage = api.embeddings.create(model="vectors", input=["a b", "c"]).usage
    assert eventually(lambda: uses(served)["prompt_tokens"] - before == usage.prompt_tokens)


def test_a_key_whose_tokens_are_used_up_waits_at_every_port(served: Served) -> None:
    with client(served, BOB) as api:
        first = api.completions.with_raw_response.create(**ENDLESS, max_tokens=60).headers
        assert first["x-ratelimit-limit-tokens"] == "40"
        assert first["x-ratelimit-remaining-tokens"] == "0"
        assert 60 < float(first["x-ratelimit-reset-tokens"].removesuffix("s")) < 100
        with pytest.raises(openai.RateLimitError, match="more than 40 tokens in a min") as caught:
            api.completions.create(**ENDLESS, stream=True)
    assert caught.value.code == "rate_limit_exceeded"
    assert 0 < int(caught.value.response.headers["retry-after"]) < 60
    assert generate(served, BOB) == 429
    with pytest.raises(InferenceServerException, match="RESOURCE_EXHAUSTED"):
        infer(served, BOB)
