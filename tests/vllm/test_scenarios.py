"""The scenarios of text generation with vLLM behind them: what holds for our engines holds here."""

from __future__ import annotations

import functools
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from generator.server_stubs import find_stubs
from tests.scenarios.answers import Answers, Sampling
from tests.scenarios.bad_requests import BadRequests
from tests.scenarios.cancellation import Cancellation, CountFinished
from tests.scenarios.chat import Chat
from tests.scenarios.client_batches import ClientBatches
from tests.scenarios.endpoint import Model
from tests.scenarios.flat_json_requests import FlatJson
from tests.scenarios.metrics import Metrics, ReadMetric
from tests.scenarios.options import MoreOptions, SamplingParameters
from tests.scenarios.reference import Reference
from tests.scenarios.stop_words import StopWords
from tests.scenarios.streaming import StreamEndpoints, Streams
from tests.scenarios.structured import Structured, StructuredBatches, StructuredStreams
from tests.scenarios.timeouts import Timeouts
from tests.scenarios.triton_endpoints import GrpcEndpoint, HttpEndpoint
from tests.support.triton import Triton, eventually

pytestmark = [pytest.mark.vllm, pytest.mark.server]

PROMPTS = ("Once upon a time", "The capital of France is", "How are you?", "She said", "I am going")


def model_behind(triton: Triton, request: pytest.FixtureRequest) -> Model:
    """``request.param`` is such as ``http demo``."""
    protocol, name = request.param.split()
    endpoint = HttpEndpoint(triton) if protocol == "http" else GrpcEndpoint(triton)
    return Model(endpoint, name, batched=name == "batched")


@pytest.fixture(params=["http demo", "grpc batched"])
def model(triton: Triton, request: pytest.FixtureRequest) -> Model:
    return model_behind(triton, request)


class TestAnswers(Answers):
    pass


class TestSampling(Sampling):
    pass


class TestStopWords(StopWords):
    pass


class TestBadRequests(BadRequests):
    pass


class TestClientBatches(ClientBatches):
    @pytest.fixture(params=["http batched"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestFlatJson(FlatJson):
    @pytest.fixture(params=["http demo", "http batched"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestSamplingParameters(SamplingParameters):
    pass


class TestMoreOptions(MoreOptions):
    pass


class TestStreams(Streams):
    hottest = 2.0


class TestStreamEndpoints(StreamEndpoints):
    pass


class TestChat(Chat):
    pass


class TestStructured(Structured):
    @pytest.fixture(params=["http demo"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)

    def test_log_probabilities_are_those_of_the_model(self, model: Model) -> None:
        """VLLM computes them behind the grammar: of the tokens that it leaves."""
        reply = model.sample("I am going", choice=["zebra"], logprobs=1, max_tokens=20)

        assert reply.texts() == ["zebra"]
        assert reply.numbers("cumulative_logprob")[0] <= 0


class TestStructuredStreams(StructuredStreams):
    @pytest.fixture(params=["grpc demo"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestStructuredBatches(StructuredBatches):
    @pytest.fixture(params=["http batched"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestTimeouts(Timeouts):
    @pytest.fixture(params=["http timed", "grpc timed"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestCancellation(Cancellation):
    @pytest.fixture(params=["http tight", "grpc tight"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)

    @pytest.fixture
    def count_finished(self, triton: Triton, model: Model) -> CountFinished:
        return lambda reason: triton.metric(
            "hf_triton_finished_total", model=model.name, finish_reason=reason
        )


class TestMetrics(Metrics):
    @pytest.fixture
    def read_metric(self, triton: Triton, model: Model) -> ReadMetric:
        return functools.partial(triton.metric, model=model.name)


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
