"""A pipeline on a real server: an image over HTTP, as base64 in JSON and as a binary tensor."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.files import base64_text, picture, png
from tests.pipeline.tiny_pipelines import vit
from tests.support.triton import Triton, eventually, serving

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("pipeline")
    (found / "vit").mkdir()
    vit(found / "vit")
    return found


@pytest.fixture(scope="module")
def triton(folder: Path) -> Iterator[Triton]:
    entry = {
        "name": "vit",
        "task": "pipeline",
        "model": "./vit",
        "options": {"pipeline": "image-classification", "parameters": '{"top_k": 2}'},
    }
    with serving(json.dumps({"models": [entry]}), folder) as running:
        yield running


@pytest.fixture(scope="module")
def expected(folder: Path) -> Any:
    from transformers import pipeline

    make: Any = pipeline
    own = make("image-classification", model=str(folder / "vit"), device="cpu")
    found = own(picture(), top_k=2)
    return [{**one, "score": pytest.approx(one["score"], abs=1e-4)} for one in found]


def binary(url: str, content: bytes) -> Any:
    """Sends ``content`` as Triton's binary tensor data: a length before it, no base64."""
    data = len(content).to_bytes(4, "little") + content
    size = {"binary_data_size": len(data)}
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "parameters": size}
    header = json.dumps({"inputs": [tensor]}).encode()
    request = urllib.request.Request(url, header + data)
    request.add_header("Inference-Header-Content-Length", str(len(header)))
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def test_an_image_comes_in_every_way(triton: Triton, expected: Any) -> None:
    flat = triton.generate("vit", image=base64_text(png()))
    assert (flat.status, json.loads(flat.body["output"])) == (200, expected)
    url = f"data:image/png;base64,{base64_text(png())}"
    tensor: dict[str, object] = {"name": "image", "datatype": "BYTES", "shape": [1]}
    tensor["data"] = [url]
    inferred = triton.infer("vit", tensor)
    assert json.loads(inferred.body["outputs"][0]["data"][0]) == expected
    body = binary(triton.url("vit", "infer"), png())
    assert json.loads(body["outputs"][0]["data"][0]) == expected


def test_hugging_faces_form_of_a_request_works(triton: Triton) -> None:
    answer = triton.generate("vit", inputs=base64_text(png()), parameters={"top_k": 4})
    assert answer.status == 200, answer.body
    assert len(json.loads(answer.body["output"])) == 4


def test_an_address_is_a_400_and_is_not_opened(triton: Triton) -> None:
    tensor: dict[str, object] = {"name": "image", "datatype": "BYTES", "shape": [1]}
    tensor["data"] = [triton.metrics_url]
    answer = triton.infer("vit", tensor)
    assert answer.status == 400
    assert "paths and addresses are not opened" in answer.body["error"]


def test_answers_are_counted(triton: Triton) -> None:
    name = "hf_triton_finished_total"
    before = triton.metric(name, model="vit", finish_reason="stop")
    assert triton.generate("vit", image=base64_text(png())).status == 200
    assert eventually(lambda: triton.metric(name, model="vit", finish_reason="stop") > before)
