"""The JSON Schema of models.yaml, and the tables that the documentation has of its keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from generator.models_yaml.reading import json_schema
from tests.support.triton import ROOT
from tests.unit.generator.conftest import Run
from tests.unit.generator.regenerate import PAGE, documented

RIGHT = {"name": "demo", "task": "text-generation", "model": "org/name"}
SCHEMA = json_schema()


def places(document: object) -> list[str]:
    """The places where a document breaks the schema."""
    validator = jsonschema.Draft202012Validator(SCHEMA)
    return [error.json_path for error in validator.iter_errors(document)]


def test_the_verb_prints_a_schema(work: Path, run: Run) -> None:
    code, out, _ = run("schema")
    assert code == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(out))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda p: p.name)
def test_every_example_keeps_it(path: Path) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert "models" not in document or places(document) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtyp": "float16"},
        {"dtype": "fp16"},
        {"task": "no-such-task"},
        {"name": "a/b"},
        {"max_batch_size": -1},
        {"options": {"max_num_seqs": "many"}},
        {"options": {"pooling": "mean"}},
        {"instance_group": [{"kind": "KIND_TPU"}]},
        {"canary": {"arms": [{"name": "a", "weight": 50, "task": "pipeline"}]}},
    ],
)
def test_a_wrong_value_breaks_it(wrong: dict[str, Any]) -> None:
    assert places({"models": [RIGHT]}) == []
    assert places({"models": [RIGHT | wrong]})[0].startswith("$.models[0]")
    assert places({"defaults": wrong, "models": [RIGHT]}) or "options" in wrong or "task" in wrong


def test_the_page_has_every_key_as_the_code_has_it() -> None:
    """``python -m tests.unit.generator.regenerate`` writes them."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == documented(page)
