"""Lists models, and finds them and their adapters by their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_triton.ports.retries import Model as Told
from hf_triton.tritonserver.model_state import State
from tests.support.triton import eventually
from tests.unit.openai_api.conftest import Starter, Translator
from tests.unit.openai_api.fake_triton import Model


@pytest.fixture
def several(starter: Starter) -> Translator:
    """A model of chats under several names, one of texts, an encoder and a classifier."""
    return starter.api(
        Model("chat_stream", "engine", served_names="gpt-4o-mini,openai/gpt-4o,t5"),
        Model("chat", "front"),
        Model("t5", "whole", task="text2text-generation"),
        Model("embed", "whole", task="feature-extraction"),
        Model("rank", "whole", task="text-classification"),
    )


def test_the_list_tells_what_each_is_for_and_how_much_it_holds(several: Translator) -> None:
    fields = ("root", "task", "max_model_len")
    chat = ("chat", "text-generation", 99)
    listed = {
        one["id"]: tuple(one.get(field) for field in fields)
        for one in several.get("/v1/models").body["data"]
    }
    assert listed == {
        "chat": chat,
        "gpt-4o-mini": chat,
        "openai/gpt-4o": chat,
        "t5": ("t5", "text2text-generation", 99),
        "embed": ("embed", "feature-extraction", None),
        "rank": ("rank", "text-classification", None),
    }
    assert several.get("/v1/models/openai/gpt-4o").body["max_model_len"] == 99
    assert len(several.triton.seen) == 2, "each is asked once, however often the list is"


@pytest.mark.parametrize("name", ["gpt-4o-mini", "openai/gpt-4o"])
def test_a_model_answers_under_its_other_names(several: Translator, name: str) -> None:
    reply = several.chat(model=name)
    assert (reply.status, reply.body["model"]) == (200, name)
    assert several.triton.seen[-1]["model"] == "chat_stream"


def test_an_own_name_stands_above_another_models_other_one(several: Translator) -> None:
    assert several.completion(model="t5").status == 200
    assert several.triton.seen[-1]["model"] == "t5"


def test_a_model_that_is_loaded_again_is_not_unknown_under_its_other_names(
    several: Translator,
) -> None:
    assert several.chat(model="gpt-4o-mini").status == 200
    for name in ("chat", "chat_stream"):
        del several.triton.models[name]
    several.tell(chat=Told(state=State.LOADING, waits_for="is being loaded"))
    assert eventually(lambda: several.chat(model="gpt-4o-mini").status == 503)


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
