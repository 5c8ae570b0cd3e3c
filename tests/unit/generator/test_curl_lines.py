"""The curl lines fit the generated config. tests/system/server/test_serve.py sends them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from generator.render.curl_lines import curl_lines
from tests.unit.generator.conftest import Run
from tests.unit.generator.workspace import ONE_MODEL, ONE_STREAMING_MODEL

URL = "http://127.0.0.1:8000/v2/models"


def lines_of(text: str, work: Path, run: Run) -> list[list[str]]:
    (work / "models.yaml").write_text(text)
    assert run("generate")[0] == 0
    return [shlex.split(line) for line in curl_lines(work / "model_repository", "demo", URL)]


@pytest.mark.parametrize("size, shape", [(0, [1]), (8, [1, 1])])
def test_a_model_has_a_line_for_each_endpoint(
    size: int, shape: list[int], work: Path, run: Run
) -> None:
    infer, generate = lines_of(f"{ONE_MODEL}    max_batch_size: {size}\n", work, run)
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
