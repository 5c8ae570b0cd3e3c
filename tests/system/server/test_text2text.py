"""A few of the scenarios on a real server, over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.text2text.conftest import Folders, References
from tests.scenarios.endpoint import Endpoint
from tests.scenarios.triton_endpoints import GrpcEndpoint, HttpEndpoint
from tests.support.text2text.scenarios import REFUSED, Agreement, Beams, LanguagesAsked, Refusals
from tests.support.text2text.served_translators import models_yaml
from tests.support.triton import Triton, serving


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory, folders: Folders) -> Iterator[Triton]:
    folder = tmp_path_factory.mktemp("triton")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with serving(models_yaml(folders, ("t5", "m2m100", "searching")), folder) as running:
            yield running


@pytest.fixture(params=[HttpEndpoint, GrpcEndpoint], ids=["http", "grpc"])
def endpoint(triton: Triton, request: pytest.FixtureRequest) -> Endpoint:
    found: Endpoint = request.param(triton)
    return found


def test_answers_are_those_of_the_stub(endpoint: Endpoint, references: References) -> None:
    for name in ("t5", "m2m100"):
        Agreement().test_a_batch_of_mixed_lengths_answers_as_transformers_does_one_by_one(
            endpoint, references, name
        )
    Agreement().test_generate_and_its_stream_take_flat_json(endpoint, references)
    LanguagesAsked().test_rows_of_one_batch_are_translated_to_languages_of_their_own(
        endpoint, references
    )
    Refusals().test_a_bad_request_is_refused_and_its_neighbours_are_not(endpoint, *REFUSED[0])
    Beams().test_a_batch_answers_as_transformers_own_beam_search_does(endpoint, references)
    Beams().test_one_beam_is_greedy_and_may_sample_and_stream(endpoint, references)
