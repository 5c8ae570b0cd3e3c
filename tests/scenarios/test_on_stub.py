"""The scenarios on the stub."""

from __future__ import annotations

import functools

import custom_metrics
import pytest

from tests.scenarios.endpoint import Model
from tests.scenarios.metrics import ReadMetric
from tests.scenarios.served_models import is_batched
from tests.scenarios.stub_endpoint import StubEndpoint
from tests.scenarios.table import classes, give_models

globals().update(classes("stub"))
pytest_generate_tests = give_models


@pytest.fixture
def model(stub: StubEndpoint, request: pytest.FixtureRequest) -> Model:
    return Model(stub, request.param, batched=is_batched(request.param))


@pytest.fixture
def read_metric(model: Model) -> ReadMetric:
    model.ask("tensors", "Once", max_tokens=1)  # loads it
    return functools.partial(custom_metrics.value, model=model.name)
