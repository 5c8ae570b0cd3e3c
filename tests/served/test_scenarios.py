"""The scenarios on a real server, over HTTP and gRPC."""

from __future__ import annotations

import functools

import pytest

from tests.scenarios.endpoint import Model
from tests.scenarios.metrics import ReadMetric
from tests.scenarios.table import classes, give_models, model_behind
from tests.support.one_server import OneServer
from tests.support.triton import Triton

globals().update(classes("server"))
pytest_generate_tests = give_models


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models("demo", "batched")


@pytest.fixture
def model(one_server: OneServer, triton: Triton, request: pytest.FixtureRequest) -> Model:
    one_server.with_models(request.param.split()[1])
    return model_behind(triton, request.param)


@pytest.fixture
def read_metric(triton: Triton, model: Model) -> ReadMetric:
    return functools.partial(triton.metric, model=model.name)
