"""The line that tries a model out over OpenAI's API goes to the path of its task."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from generator.render.sample_requests import curl_lines, openai_curl_line
from hf_triton.cli.verbs.generate import generate
from hf_triton.ports.openai.schema.media import take_media
from hf_triton.ports.settings import EVERYBODY, Access, Caller

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/every-task.yaml"
EXPECTED = {
    "text": ("/v1/completions", "prompt"),
    "translate": ("/v1/completions", "prompt"),
    "embedding": ("/v1/embeddings", "input"),
    "classifier": ("/v1/classify", "input"),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    generate(EXAMPLE, folder)
    return folder


@pytest.mark.parametrize("key", [None, "secret"])
def test_each_task_has_its_path_and_others_none(repository: Path, key: str | None) -> None:
    access = Access((Caller("openai", key),)) if key else EVERYBODY
    url, variable = "http://127.0.0.1:9000", access.key_variable
    for model in ("text", "embedding", "translate", "classifier", "image"):
        every = curl_lines(repository, model, "http://127.0.0.1:8000", variable, url)
        lines = [line for line in every if f"{url}/v1/" in line]
        assert len(lines) == (model in EXPECTED)
        for line in lines:
            words = shlex.split(line)
            path, field = EXPECTED[model]
            assert words[1] == f"http://127.0.0.1:9000{path}"
            assert set(json.loads(words[-1])) == {"model", field}
            assert ("$HF_TRITON_API_KEY" in line) == (key is not None)
            assert "secret" not in line


@pytest.mark.parametrize("tensor", ["image", "audio"])
def test_a_model_that_sees_or_hears_is_sent_a_chat_with_a_file(tensor: str) -> None:
    words = shlex.split(openai_curl_line("http://127.0.0.1:9000", "m", f"{tensor}-text-to-text"))
    assert words[1] == "http://127.0.0.1:9000/v1/chat/completions"
    _, media = take_media(json.loads(words[-1])["messages"])
    assert [part.tensor for part in media] == [tensor]
