"""The curl lines fit the generated config, and send each task what it needs.
tests/system/server/test_every_task.py sends them.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from generator.render.sample_requests import curl_lines
from hf_triton.cli.verbs.generate import generate
from tests.unit.generator.conftest import Run
from tests.unit.generator.workspace import ONE_MODEL, ONE_STREAMING_MODEL

URL = "http://127.0.0.1:8000/v2/models"


def lines_of(text: str, work: Path, run: Run) -> list[list[str]]:
    (work / "models.yaml").write_text(text)
    assert run("generate")[0] == 0
    return [shlex.split(line) for line in curl_lines(work / "model_repository", "demo", URL)]


@pytest.mark.parametrize(
    "key, shape",
    [("max_batch_size: 0", [1]), ("max_batch_size: 8", [1, 1]), ("layout: ensemble", [1])],
)
def test_a_model_has_a_line_for_each_endpoint(
    key: str, shape: list[int], work: Path, run: Run
) -> None:
    infer, generate = lines_of(f"{ONE_MODEL}    {key}\n", work, run)
    assert infer[:3] == ["curl", f"{URL}/demo/infer", "-d"]
    tensor = {"name": "IN", "datatype": "BYTES", "shape": shape, "data": ["I am going"]}
    assert json.loads(infer[3]) == {"inputs": [tensor]}
    assert generate[:3] == ["curl", f"{URL}/demo/generate", "-d"]
    assert json.loads(generate[3]) == {"IN": "I am going"}


def test_a_model_that_streams_has_one_more_to_its_engine(work: Path, run: Run) -> None:
    infer, generate, stream = lines_of(ONE_STREAMING_MODEL, work, run)
    assert infer[1] == f"{URL}/demo/infer"
    assert generate[1] == f"{URL}/demo/generate"
    assert stream[:4] == ["curl", "-N", f"{URL}/demo_stream/generate_stream", "-d"]
    assert json.loads(stream[4]) == {"IN": "I am going", "stream": True}


STREAMING = (
    "text2text-generation",
    "image-text-to-text",
    "audio-text-to-text",
    "automatic-speech-recognition",
)


def bodies(task: str, tmp_path: Path, **entry: Any) -> tuple[Any, Any]:
    """The JSON for /infer and for /generate of a model of one of our own tasks."""
    models = [{"name": "m", "task": task, "model": "org/name", "streaming": False, **entry}]
    if task not in STREAMING:
        del models[0]["streaming"]
    (tmp_path / "models.yaml").write_text(json.dumps({"models": models}))
    generate(tmp_path / "models.yaml", tmp_path / "model_repository")
    lines = [shlex.split(line) for line in curl_lines(tmp_path / "model_repository", "m", URL)]
    infer, flat = (json.loads(line[3]) for line in lines)
    return infer, flat


@pytest.mark.parametrize(
    "task, names",
    [
        ("feature-extraction", ["text_input"]),
        ("text-classification", ["text_input"]),
        ("token-classification", ["text_input"]),
        ("question-answering", ["question", "context"]),
        ("fill-mask", ["text_input"]),
        ("zero-shot-classification", ["text_input", "candidate_labels"]),
        ("text2text-generation", ["text_input"]),
        ("image-text-to-text", ["text_input", "image"]),
        ("audio-text-to-text", ["text_input", "audio"]),
        ("automatic-speech-recognition", ["audio"]),
    ],
)
def test_each_task_is_sent_what_it_needs(task: str, names: list[str], tmp_path: Path) -> None:
    infer, flat = bodies(task, tmp_path)
    assert list(flat) == [tensor["name"] for tensor in infer["inputs"]] == names
    for tensor in infer["inputs"]:
        assert tensor["shape"] == [len(tensor["data"])]
        assert tensor["data"] in (flat[tensor["name"]], [flat[tensor["name"]]])


def test_a_list_of_a_batched_model_is_one_row(tmp_path: Path) -> None:
    infer, flat = bodies("zero-shot-classification", tmp_path, max_batch_size=4)
    labels = infer["inputs"][1]
    assert labels["shape"] == [1, 3]
    assert labels["data"] == flat["candidate_labels"]


def test_a_mask_is_written_as_the_model_writes_it(tmp_path: Path) -> None:
    assert "[MASK]" in bodies("fill-mask", tmp_path)[1]["text_input"]
    tokens = {"added_tokens": [{"content": "<s>"}, {"content": "<mask>"}]}
    cached = tmp_path / "model_repository/m/hf_cache/models--org--name/snapshots/1/tokenizer.json"
    cached.parent.mkdir(parents=True)
    cached.write_text(json.dumps(tokens))
    assert bodies("fill-mask", tmp_path)[1]["text_input"] == "She drinks a cup of <mask>."
    local = tmp_path / "own"
    local.mkdir()
    (local / "config.json").write_text("{}")
    (local / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"content": "[mask]"}]}))
    assert "[mask]" in bodies("fill-mask", tmp_path, model="./own")[1]["text_input"]


def test_a_model_that_was_applied_has_lines_too(tmp_path: Path) -> None:
    bodies("fill-mask", tmp_path)
    repository = tmp_path / "model_repository"
    (repository / "m" / "1").rename(repository / "m" / "3")
    assert any("[MASK]" in line for line in curl_lines(repository, "m", URL))


@pytest.mark.parametrize(
    "pipeline, names",
    [
        ("image-classification", ["image"]),
        ("automatic-speech-recognition", ["audio"]),
        ("zero-shot-image-classification", ["image", "candidate_labels"]),
    ],
)
def test_each_kind_of_pipeline_is_sent_what_it_needs(
    pipeline: str, names: list[str], tmp_path: Path
) -> None:
    _, flat = bodies("pipeline", tmp_path, options={"pipeline": pipeline})
    assert list(flat) == names
