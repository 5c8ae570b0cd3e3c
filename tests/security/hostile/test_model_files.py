"""Models whose files are hostile, and one beside them that goes on serving, on a real server."""

from __future__ import annotations

import pytest

from tests.support.one_server import OneServer

pytestmark = pytest.mark.server


@pytest.mark.threat("model-file-kinds")
@pytest.mark.parametrize(
    "model, said",
    [
        ("piped", "config.json: it is a pipe, expected a regular file"),
        ("layered", "config.json: num_hidden_layers: got 10000000, allowed: at most 10000"),
    ],
)
def test_a_model_of_hostile_files_is_refused_and_its_neighbour_serves(
    one_server: OneServer, model: str, said: str
) -> None:
    triton = one_server.with_models("demo")
    answer = triton.control(model, "load")
    assert answer.status == 400
    assert said in answer.body["error"]
    assert triton.generate("demo", text_input="I am going", max_tokens=5).status == 200
