"""Task folders are found by their presence and under other names, and broken ones are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.errors import TemplateError
from generator.spec import task_folders
from generator.spec.task_folders import find_tasks
from generator.spec.task_names import task_hint
from tests.unit.generator.conftest import Run
from tests.unit.generator.workspace import ONE_MODEL


def test_a_folder_with_a_config_template_is_a_task(work: Path) -> None:
    templates = work.parent / "templates"
    (templates / "token_classification").mkdir()
    (templates / "token_classification/config.pbtxt.j2").write_text("")
    (templates / "not_a_task").mkdir()
    assert list(find_tasks()) == ["fake-stream", "fake-task", "token-classification"]


def test_no_task_at_all_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_folders, "default_directory", lambda: tmp_path)
    with pytest.raises(TemplateError, match="no task folder with a config"):
        find_tasks()


@pytest.mark.parametrize(
    "text, code",
    [("''", 0), ("'query: '", 0), (r'"first\nsecond:\t"', 0), (r'"a\ab"', 1), ("3", 1)],
)
def test_a_text_option_may_be_empty_and_have_lines(
    text: str, code: int, work: Path, run: Run
) -> None:
    (work / "models.yaml").write_text(f"{ONE_MODEL}    options: {{label: {text}}}\n")
    assert run("validate")[0] == code


@pytest.mark.parametrize(
    "tag, hint",
    [
        ("sentence-similarity", "'feature-extraction'?"),
        ("text-ranking", "'text-classification'?"),
        ("sentiment-analysis", "'text-classification'?"),
        ("ner", "'token-classification'?"),
        ("summarization", "'text2text-generation'?"),
        ("translation_en_to_de", "'text2text-generation'?"),
        ("image-classification", "'pipeline', with options: {pipeline: image-classification}?"),
        ("speech-to-text", "'automatic-speech-recognition'?"),
        ("visual-question-answering", "'image-text-to-text'?"),
    ],
)
def test_another_name_of_a_task_is_understood(tag: str, hint: str) -> None:
    found = task_hint(tag, find_tasks())
    assert found.startswith("; did you mean ")
    assert found.endswith(hint)


def test_what_means_nothing_gets_no_hint_and_no_task_that_is_not_there() -> None:
    assert task_hint("nonsense", find_tasks()) == ""
    assert task_hint("ner", ["text-generation"]) == ""
    assert task_hint("image-classification", ["text-generation"]) == ""
