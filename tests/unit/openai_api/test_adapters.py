"""Adapters are models of OpenAI's API: listed, and asked for by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.openai_api.conftest import Starter, Translator
from tests.unit.openai_api.fake_triton import Model


@pytest.fixture
def adapted(starter: Starter) -> Translator:
    """Two models with adapters, one of which both have."""
    return starter.api(
        *(Model("writer", "front"), Model("writer_stream", "engine", adapters="polite,sql")),
        *(Model("other", "front"), Model("other_stream", "engine", adapters="sql")),
    )


def test_each_is_listed_beside_its_model(adapted: Translator) -> None:
    listed = {one["id"]: one.get("parent") for one in adapted.get("/v1/models").body["data"]}
    assert listed == {
        "other": None,
        "other:sql": "other",
        "writer": None,
        "writer:polite": "writer",
        "writer:sql": "writer",
    }


@pytest.mark.parametrize("name", ["writer:polite", "polite"])
@pytest.mark.parametrize("stream", [False, True])
def test_one_is_asked_for_by_its_name(adapted: Translator, name: str, stream: bool) -> None:
    assert adapted.completion(model=name, stream=stream).status == 200
    assert adapted.triton.seen[-1]["lora_name"] == "polite"


def test_one_is_named_as_text_generation_inference_does_it(adapted: Translator) -> None:
    parameters = {"adapter_id": "sql"}
    assert adapted.post("/models/other/generate", inputs="a", parameters=parameters).status == 200
    assert adapted.triton.seen[-1]["lora_name"] == "sql"


@pytest.mark.parametrize("name", ["sql", "writer:none", "none:sql"])
def test_a_name_of_none_or_of_several_is_a_404(adapted: Translator, name: str) -> None:
    assert adapted.completion(model=name).status == 404


def test_those_of_now_are_listed_and_asked_for_though_the_model_was_loaded_with_others(
    starter: Starter, tmp_path: Path
) -> None:
    for version, names in ((2, ["sql"]), (10, ["polite", "new"])):
        (tmp_path / "m_stream" / str(version)).mkdir(parents=True)
        listed = json.dumps([{"name": name} for name in names])
        (tmp_path / "m_stream" / str(version) / "adapters.json").write_text(listed)
    api = starter.api(Model("m_stream", "engine", adapters="sql"), repository=tmp_path)
    listed_now = {one["id"] for one in api.get("/v1/models").body["data"]}
    assert listed_now == {"m", "m:polite", "m:new"}
    assert api.completion(model="new").status == 200
    assert api.triton.seen[-1]["lora_name"] == "new"
    assert api.completion(model="sql").status == 404
