"""Names that are not ours lead to the task that serves them."""

from __future__ import annotations

import pytest

from generator.spec.task_folders import find_tasks
from generator.spec.task_names import task_hint


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
