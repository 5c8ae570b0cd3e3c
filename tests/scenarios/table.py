"""Lists the scenarios of a real server, and of one with vLLM behind.

A model of a real server is asked by ``http`` or by ``grpc``; a streaming one answers ``/infer``,
``/generate`` and their streams either way.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.scenarios.answers import Answers
from tests.scenarios.bad_requests import BadRequests
from tests.scenarios.cancellation import Cancellation
from tests.scenarios.chat import Chat
from tests.scenarios.client_batches import ClientBatches
from tests.scenarios.endpoint import Model
from tests.scenarios.flat_json_requests import FlatJson
from tests.scenarios.metrics import Metrics
from tests.scenarios.options import MoreOptions, SamplingParameters
from tests.scenarios.served_models import is_batched
from tests.scenarios.shared_prefixes import CacheSalts
from tests.scenarios.streaming import StreamEndpoints, Streams
from tests.scenarios.structured import (
    Structured,
    StructuredBatches,
    StructuredStreams,
)
from tests.scenarios.timeouts import Timeouts
from tests.scenarios.triton_endpoints import GrpcEndpoint, HttpEndpoint
from tests.support.triton import Triton


@dataclass(frozen=True)
class Row:
    """The models that a class of scenarios is run on, by kind of endpoint."""

    scenarios: type
    server: str
    vllm: str


TABLE = (
    Row(Answers, server="http demo, grpc batched, http padded", vllm="http demo, grpc batched"),
    Row(BadRequests, server="http demo, grpc batched", vllm="http demo, grpc batched"),
    Row(ClientBatches, server="http batched, grpc padded", vllm="http batched"),
    Row(FlatJson, server="http demo, http batched", vllm="http demo, http batched"),
    Row(SamplingParameters, server="grpc demo", vllm="http demo, grpc batched"),
    Row(MoreOptions, server="http demo, grpc batched, http padded", vllm="http demo, grpc batched"),
    Row(Streams, server="grpc demo, http batched, grpc padded", vllm="http demo, grpc batched"),
    Row(StreamEndpoints, server="http demo, grpc padded", vllm="http demo, grpc batched"),
    Row(Chat, server="http demo, grpc batched", vllm="http demo, grpc batched"),
    Row(Structured, server="http demo", vllm="http demo"),
    Row(StructuredStreams, server="grpc demo", vllm="grpc demo"),
    Row(StructuredBatches, server="http batched", vllm="http batched"),
    Row(Timeouts, server="http timed, grpc timed", vllm="http timed, grpc timed"),
    # Over HTTP it is /generate_stream alone whose clients are seen to leave.
    Row(Cancellation, server="http tight, grpc tight", vllm="http tight, grpc tight"),
    Row(Metrics, server="http demo", vllm="http demo, grpc batched"),
    Row(CacheSalts, server="http demo, grpc batched", vllm="http demo, grpc batched"),
)


def classes(kind: str) -> dict[str, type]:
    """Classes for pytest to collect, by name; each runs its scenarios on ``kind``'s models."""
    return {
        name: type(name, (row.scenarios,), {"ASKED": getattr(row, kind), "KIND": kind})
        for row in TABLE
        if (name := f"Test{row.scenarios.__name__}")
    }


def give_models(metafunc: pytest.Metafunc, others: str = "") -> None:
    """Runs a test that takes ``model`` once for each model of its class, or each of ``others``."""
    if "model" in metafunc.fixturenames:
        asked = metafunc.cls.ASKED if metafunc.cls else others
        metafunc.parametrize("model", asked.split(", "), indirect=True)


def model_behind(triton: Triton, asked: str) -> Model:
    """``asked`` is such as ``http demo``."""
    protocol, name = asked.split()
    endpoint = HttpEndpoint(triton) if protocol == "http" else GrpcEndpoint(triton)
    return Model(endpoint, name, batched=is_batched(name))
