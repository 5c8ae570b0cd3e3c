"""Labels for Triton's classification extension: where a model's folder says them, in its order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from generator.models_yaml.reading import load
from generator.render import model_config
from generator.render.model_folder import render
from generator.spec.task_folders import find_tasks
from generator.spec.triton_models import triton_models

CLASSIFIER = """\
models:
  - name: demo
    task: text-classification
    model: ./model
"""


def named_labels(work: Path, config: object, more: str = "") -> dict[str, tuple[str, Any]]:
    """For each Triton model the label file that its config names, and what lies there."""
    (work / "model").mkdir(exist_ok=True)
    (work / "model" / "config.json").write_text(json.dumps(config))
    (work / "models.yaml").write_text(CLASSIFIER + more)
    tasks, found = find_tasks(), {}
    for model in triton_models(load(work / "models.yaml")[0]):
        files = render(model, tasks["text-classification"], work / "model_repository")
        parsed: Any = model_config.parse(files["config.pbtxt"].decode())
        (named,) = {
            tensor.label_filename for tensor in parsed.output if tensor.name == "logits"
        } or {""}
        found[model.name] = (named, files.get("1/labels.txt"))
    return found


LABELS = {"id2label": {"10": "k", **{str(number): f"é{number}" for number in range(10)}}}


@pytest.mark.parametrize("layout", ["", "    layout: ensemble\n"])
def test_labels_stand_beside_what_callers_ask(layout: str, tmp_path: Path) -> None:
    expected = "".join(f"é{number}\n" for number in range(10)).encode() + b"k\n"
    found = named_labels(tmp_path, LABELS, layout)
    assert found.pop("demo") == ("1/labels.txt", expected)
    assert set(found.values()) <= {("", None)}


@pytest.mark.parametrize(
    "config",
    [
        {},
        [],
        {"id2label": ["a", "b"]},
        {"id2label": {"0": "a", "2": "b"}},
        {"id2label": {"0": "a", "1": "two\nlines"}},
        {"id2label": {"0": "a", "1": "\ud800"}},
        {"id2label": {"0": "a", "1": "b"}, "num_labels": 3},  # transformers names them LABEL_0, ...
    ],
)
def test_labels_that_are_not_known_are_not_named(config: object, tmp_path: Path) -> None:
    assert named_labels(tmp_path, config) == {"demo": ("", None)}
