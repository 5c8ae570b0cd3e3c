"""The scenarios on the stub, and what only a stub can be made to do."""

from __future__ import annotations

import pytest

from tests.scenarios.answers import Answers, Sampling
from tests.scenarios.bad_requests import BadRequests
from tests.scenarios.client_batches import ClientBatches
from tests.scenarios.endpoint import Model
from tests.scenarios.flat_json_requests import FlatJson
from tests.scenarios.stop_words import StopWords
from tests.scenarios.stub_endpoint import StubEndpoint


@pytest.fixture(params=["demo", "batched", "padded"])
def model(stub: StubEndpoint, request: pytest.FixtureRequest) -> Model:
    return Model(stub, request.param, batched=request.param != "demo")


@pytest.fixture(params=["batched", "padded"])
def batched_model(stub: StubEndpoint, request: pytest.FixtureRequest) -> Model:
    return Model(stub, request.param, batched=True)


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
        return Model(stub, request.param, batched=request.param != "demo")


class TestClientBatches(ClientBatches):
    @pytest.fixture
    def model(self, batched_model: Model) -> Model:
        return batched_model
