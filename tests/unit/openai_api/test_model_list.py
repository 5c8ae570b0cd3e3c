"""What is told of models, and the names that they are known by."""

from __future__ import annotations

import pytest

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
    fields = ("root", "type", "task", "max_model_len")
    chat = ("chat", "chat", "text-generation", 99)
    listed = {
        one["id"]: tuple(one.get(field) for field in fields)
        for one in several.get("/v1/models").body["data"]
    }
    assert listed == {
        "chat": chat,
        "gpt-4o-mini": chat,
        "openai/gpt-4o": chat,
        "t5": ("t5", "language", "text2text-generation", 99),
        "embed": ("embed", "embedding", "feature-extraction", None),
        "rank": ("rank", "rerank", "text-classification", None),
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
    several.triton.loading |= {"chat", "chat_stream"}
    for name in ("chat", "chat_stream"):
        del several.triton.models[name]
    assert several.chat(model="gpt-4o-mini").status == 503
