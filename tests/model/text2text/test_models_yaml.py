"""What models.yaml may say of text2text models, and the names that it gets wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.errors import SpecError
from generator.models_yaml.reading import load
from generator.spec.task_folders import find_tasks

TASKS = find_tasks()


def problems(tmp_path: Path, entry: str) -> str:
    path = tmp_path / "models.yaml"
    path.write_text(f"models:\n  - name: tiny\n    model: google/flan-t5-small\n{entry}")
    with pytest.raises(SpecError) as raised:
        load(path)
    return str(raised.value)


@pytest.mark.parametrize(
    "options, message",
    [
        ("num_beams: 0", "options.num_beams: got 0, expected a whole number from 1 to 64 (beams)"),
        (
            "num_beams: 8, max_num_seqs: 4",
            "options.num_beams: got 8, expected at most max_num_seqs (4)",
        ),
        (
            "default_timeout_ms: 9, max_timeout_ms: 5",
            "options.default_timeout_ms: got 9, expected at most max_timeout_ms (5)",
        ),
        ("prefix: 3", "options.prefix: got 3, expected text; quote it"),
        ("src_lang: en", "options.src_lang: unknown key; did you mean 'source_lang'?"),
        ("split_words: 1", "options.split_words: unknown key; known keys: prefix, "),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(
    options: str, message: str, tmp_path: Path
) -> None:
    found = problems(tmp_path, f"    task: text2text-generation\n    options: {{{options}}}\n")
    assert f"models[0].{message}" in found


def test_an_empty_prefix_is_one(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(
        "models:\n  - name: tiny\n    model: google/flan-t5-small\n"
        '    task: text2text-generation\n    options: {prefix: ""}\n'
    )
    (spec,) = load(tmp_path / "models.yaml")
    assert spec.options["prefix"] == ""
