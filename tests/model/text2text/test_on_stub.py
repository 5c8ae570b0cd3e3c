"""The scenarios on the stub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hf_triton.cli.verbs.generate import generate
from tests.model.text2text.conftest import Folders
from tests.scenarios.stub_endpoint import StubEndpoint
from tests.support.text2text.scenarios import Agreement, Beams, LanguagesAsked, LongInputs, Refusals
from tests.support.text2text.served_translators import models_yaml

pytestmark = pytest.mark.filterwarnings("ignore:Recommended")  # sacremoses, by Marian's tokenizer


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, folders: Folders) -> Iterator[StubEndpoint]:
    """Each model is loaded when it is first asked."""
    folder = tmp_path_factory.mktemp("stub")
    (folder / "models.yaml").write_text(models_yaml(folders), encoding="utf-8")
    generate(folder / "models.yaml", folder / "model_repository")
    stub = StubEndpoint(folder / "model_repository")
    yield stub
    stub.close()


class TestAgreement(Agreement):
    pass


class TestLanguagesAsked(LanguagesAsked):
    pass


class TestLongInputs(LongInputs):
    pass


class TestRefusals(Refusals):
    pass


class TestBeams(Beams):
    pass
