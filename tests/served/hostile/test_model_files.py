"""A model whose files are hostile, and one beside it that goes on serving, on a real server."""

from __future__ import annotations

import pytest

from tests.support.one_server import OneServer


@pytest.mark.threat("model-file-kinds")
def test_a_model_of_hostile_files_is_refused_and_its_neighbour_serves(
    one_server: OneServer,
) -> None:
    triton = one_server.with_models("demo")
    answer = triton.control("piped", "load")
    assert answer.status == 400
    assert "config.json: it is a pipe, expected a regular file" in answer.body["error"]
    assert triton.generate("demo", text_input="I am going", max_tokens=5).status == 200
