"""The keys of text2text models in models.yaml, and names that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.errors import SpecError
from generator.models_yaml.reading import load
from generator.spec.task_folders import find_tasks

TASKS = find_tasks()


def test_more_beams_than_sequences_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(
        "models:\n  - name: tiny\n    model: google/flan-t5-small\n"
        "    task: text2text-generation\n    options: {num_beams: 8, max_num_seqs: 4}\n"
    )
    said = r"options\.num_beams: got 8, expected at most max_num_seqs \(4\)"
    with pytest.raises(SpecError, match=said):
        load(path)


def test_an_empty_prefix_is_one(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(
        "models:\n  - name: tiny\n    model: google/flan-t5-small\n"
        '    task: text2text-generation\n    options: {prefix: ""}\n'
    )
    (spec,) = load(tmp_path / "models.yaml")
    assert spec.options["prefix"] == ""
