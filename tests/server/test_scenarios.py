"""The scenarios on a real server, over HTTP and gRPC: so the stub can't drift from it."""

from __future__ import annotations

import functools

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
from tests.scenarios.structured import Structured, StructuredStreams
from tests.scenarios.timeouts import Timeouts
from tests.scenarios.triton_endpoints import GrpcEndpoint, HttpEndpoint
from tests.support.triton import Triton

pytestmark = pytest.mark.server


ENDPOINTS: dict[str, type[HttpEndpoint] | type[GrpcEndpoint]] = {
    "http": HttpEndpoint,
    "grpc": GrpcEndpoint,
}


def model_behind(triton: Triton, request: pytest.FixtureRequest) -> Model:
    """``request.param`` is such as ``http demo``."""
    protocol, name = request.param.split()
    return Model(ENDPOINTS[protocol](triton), name, batched=is_batched(name))


@pytest.fixture(params=["http demo", "grpc batched", "http padded"])
def model(triton: Triton, request: pytest.FixtureRequest) -> Model:
    return model_behind(triton, request)


@pytest.fixture
def read_metric(triton: Triton, model: Model) -> ReadMetric:
    return functools.partial(triton.metric, model=model.name)


class TestAnswers(Answers):
    @pytest.fixture(params=["http demo", "grpc batched", "http padded", "grpc whole"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestSampling(Sampling):
    pass


class TestStopWords(StopWords):
    pass


class TestBadRequests(BadRequests):
    @pytest.fixture(params=["http demo", "grpc batched"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestClientBatches(ClientBatches):
    @pytest.fixture(params=["http batched", "grpc padded"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestFlatJson(FlatJson):
    @pytest.fixture(params=["http demo", "http batched"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestSamplingParameters(SamplingParameters):
    @pytest.fixture(params=["grpc demo", "http padded"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestMoreOptions(MoreOptions):
    @pytest.fixture(params=["http demo", "grpc batched"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestStreams(Streams):
    @pytest.fixture(params=["grpc demo", "http demo", "http batched", "grpc padded"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestStreamEndpoints(StreamEndpoints):
    @pytest.fixture(params=["http demo", "grpc padded"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestChat(Chat):
    @pytest.fixture(params=["http demo", "grpc batched"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestStructured(Structured):
    @pytest.fixture(params=["http demo"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestStructuredStreams(StructuredStreams):
    @pytest.fixture(params=["grpc demo"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestTimeouts(Timeouts):
    @pytest.fixture(params=["http timed", "grpc timed"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestCancellation(Cancellation):
    """Over HTTP it is ``/generate_stream`` alone whose clients are seen to leave."""

    @pytest.fixture(params=["http tight", "grpc tight"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)

    @pytest.fixture
    def count_finished(self, triton: Triton, model: Model) -> CountFinished:
        return lambda reason: triton.metric(
            "hf_triton_finished_total", model=model.name, finish_reason=reason
        )


class TestMetrics(Metrics):
    @pytest.fixture(params=["http demo", "grpc padded"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)


class TestSharedPrefixes(SharedPrefixes):
    @pytest.fixture(params=["http demo", "grpc batched"])
    def model(self, triton: Triton, request: pytest.FixtureRequest) -> Model:
        return model_behind(triton, request)
