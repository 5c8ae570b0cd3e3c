"""The scenarios on the stub, and what only a stub can be made to do."""

from __future__ import annotations

import functools

import custom_metrics
import pytest

from tests.scenarios.answers import Answers, Sampling
from tests.scenarios.bad_requests import BadRequests
from tests.scenarios.cancellation import Cancellation, CountFinished
from tests.scenarios.chat import Chat
from tests.scenarios.client_batches import ClientBatches
from tests.scenarios.endpoint import Model
from tests.scenarios.flat_json_requests import FlatJson
from tests.scenarios.metrics import Metrics, ReadMetric
from tests.scenarios.options import MoreOptions, SamplingParameters
from tests.scenarios.served_models import is_batched
from tests.scenarios.shared_prefixes import SharedPrefixes
from tests.scenarios.stop_words import StopWords
from tests.scenarios.streaming import StreamEndpoints, Streams
from tests.scenarios.structured import Structured, StructuredBatches, StructuredStreams
from tests.scenarios.stub_endpoint import StubEndpoint
from tests.scenarios.timeouts import Timeouts


def model_of(stub: StubEndpoint, name: str) -> Model:
    return Model(stub, name, batched=is_batched(name))


@pytest.fixture(params=["demo", "batched", "padded"])
def model(stub: StubEndpoint, request: pytest.FixtureRequest) -> Model:
    return model_of(stub, request.param)


@pytest.fixture
def read_metric(model: Model) -> ReadMetric:
    model.ask("tensors", "Once", max_tokens=1)  # loads it
    return functools.partial(custom_metrics.value, model=model.name)


class TestAnswers(Answers):
    pass


class TestSampling(Sampling):
    pass


class TestStopWords(StopWords):
    pass


class TestFlatJson(FlatJson):
    pass


class TestBadRequests(BadRequests):
    @pytest.fixture(params=["demo", "batched"])
    def model(self, stub: StubEndpoint, request: pytest.FixtureRequest) -> Model:
        return model_of(stub, request.param)


class TestClientBatches(ClientBatches):
    @pytest.fixture(params=["batched", "padded"])
    def model(self, stub: StubEndpoint, request: pytest.FixtureRequest) -> Model:
        return model_of(stub, request.param)


class TestSamplingParameters(SamplingParameters):
    @pytest.fixture(params=["demo", "padded"])
    def model(self, stub: StubEndpoint, request: pytest.FixtureRequest) -> Model:
        return model_of(stub, request.param)


class TestMoreOptions(MoreOptions):
    @pytest.fixture(params=["whole", "batched", "padded"])
    def model(self, stub: StubEndpoint, request: pytest.FixtureRequest) -> Model:
        return model_of(stub, request.param)


class TestStreams(Streams):
    pass


class TestStreamEndpoints(StreamEndpoints):
    @pytest.fixture(params=["demo", "padded"])
    def model(self, stub: StubEndpoint, request: pytest.FixtureRequest) -> Model:
        return model_of(stub, request.param)


class TestChat(Chat):
    @pytest.fixture(params=["demo", "batched"])
    def model(self, stub: StubEndpoint, request: pytest.FixtureRequest) -> Model:
        return model_of(stub, request.param)


class TestStructured(Structured):
    @pytest.fixture(params=["whole", "padded"])
    def model(self, stub: StubEndpoint, request: pytest.FixtureRequest) -> Model:
        return model_of(stub, request.param)


class TestStructuredStreams(StructuredStreams):
    @pytest.fixture(params=["demo", "padded"])
    def model(self, stub: StubEndpoint, request: pytest.FixtureRequest) -> Model:
        return model_of(stub, request.param)


class TestStructuredBatches(StructuredBatches):
    @pytest.fixture
    def model(self, stub: StubEndpoint) -> Model:
        return model_of(stub, "batched")


class TestTimeouts(Timeouts):
    @pytest.fixture
    def model(self, stub: StubEndpoint) -> Model:
        return model_of(stub, "timed")


class TestCancellation(Cancellation):
    @pytest.fixture
    def model(self, stub: StubEndpoint) -> Model:
        return model_of(stub, "tight")

    @pytest.fixture
    def count_finished(self, model: Model) -> CountFinished:
        model.ask("tensors", "Once", max_tokens=1)  # loads it
        return lambda reason: custom_metrics.value(
            "hf_triton_finished_total", model=model.name, finish_reason=reason
        )


class TestMetrics(Metrics):
    @pytest.fixture(params=["demo", "padded"])
    def model(self, stub: StubEndpoint, request: pytest.FixtureRequest) -> Model:
        return model_of(stub, request.param)


class TestSharedPrefixes(SharedPrefixes):
    @pytest.fixture
    def model(self, stub: StubEndpoint) -> Model:
        return model_of(stub, "demo")
