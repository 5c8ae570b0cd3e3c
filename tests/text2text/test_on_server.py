"""A few of the scenarios on a real server, over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.endpoint import Endpoint
from tests.scenarios.triton_endpoints import GrpcEndpoint, HttpEndpoint
from tests.support.triton import Triton, serving
from tests.text2text.conftest import Folders, References
from tests.text2text.scenarios import Agreement, Beams, LanguagesAsked
from tests.text2text.served_translators import models_yaml

pytestmark = [pytest.mark.server, pytest.mark.slow]


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


def test_a_batch_is_answered_as_transformers_does(
    endpoint: Endpoint, references: References
) -> None:
    scenario = Agreement()
    for name in ("t5", "m2m100"):
        scenario.test_a_batch_of_mixed_lengths_answers_as_transformers_does_one_by_one(
            endpoint, references, name
        )


def test_infer_generate_and_its_stream_agree(endpoint: Endpoint, references: References) -> None:
    Agreement().test_generate_and_its_stream_take_flat_json(endpoint, references)


def test_a_request_names_its_languages(endpoint: Endpoint, references: References) -> None:
    scenario = LanguagesAsked()
    scenario.test_rows_of_one_batch_are_translated_to_languages_of_their_own(endpoint, references)
    scenario.test_an_unknown_language_is_refused_with_known_ones(
        endpoint, "m2m100", {"target_lang": "fra"}, "target_lang: got fra, allowed: fr, "
    )


def test_beams_are_transformers_own(endpoint: Endpoint, references: References) -> None:
    Beams().test_a_batch_answers_as_transformers_own_beam_search_does(endpoint, references)
    Beams().test_one_beam_is_greedy_and_may_sample_and_stream(endpoint, references)
