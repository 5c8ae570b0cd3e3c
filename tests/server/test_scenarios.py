"""The scenarios on a real server, over HTTP and gRPC: so the stub can't drift from it."""

from __future__ import annotations

import pytest

from tests.scenarios.answers import Answers, Sampling
from tests.scenarios.bad_requests import BadRequests
from tests.scenarios.client_batches import ClientBatches
from tests.scenarios.endpoint import Model
from tests.scenarios.flat_json_requests import FlatJson
from tests.scenarios.stop_words import StopWords
from tests.scenarios.triton_endpoints import GrpcEndpoint, HttpEndpoint
from tests.support.triton import Triton

pytestmark = pytest.mark.server


ENDPOINTS = {"http": HttpEndpoint, "grpc": GrpcEndpoint}


def model_behind(triton: Triton, request: pytest.FixtureRequest) -> Model:
    """``request.param`` is such as ``http demo``."""
    protocol, name = request.param.split()
    return Model(ENDPOINTS[protocol](triton), name, batched=name != "demo")


@pytest.fixture(params=["http demo", "grpc batched", "http padded"])
def model(triton: Triton, request: pytest.FixtureRequest) -> Model:
    return model_behind(triton, request)


class TestAnswers(Answers):
    pass


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
