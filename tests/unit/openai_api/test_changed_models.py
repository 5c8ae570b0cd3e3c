"""A model that was changed since the translator read what there is: its requests are answered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.openai_api.conftest import MODELS, Translator
from tests.unit.openai_api.fake_triton import Model


@pytest.fixture
def changing(api: Translator) -> Iterator[Translator]:
    """Has just read the catalog, and gets all models back."""
    assert api.completion().status == 200
    yield api
    api.triton.models.clear()
    api.triton.models.update({model.name: model for model in MODELS})


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_no_longer_streams_is_asked_as_what_it_is_now(
    changing: Translator, stream: bool
) -> None:
    del changing.triton.models["echo_stream"]
    changing.triton.models["echo"] = Model("echo", "whole")
    reply = changing.completion(stream=stream)
    assert reply.status == 200
    assert "a" in reply.text
