"""sentence-transformers itself, in an environment of its own: it answers what saved_answers.json
has, and its files have no key that ours do not know.

Where its answers change, ``python -m tests.support.saved_models`` writes them anew.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from hf_triton.encoder.sentence_transformers import keys
from tests.support.saved_models import ANSWERS, CASES, Answers, ask_sentence_transformers

TABLES = {
    "Transformer": keys.TRANSFORMER,
    "Pooling": keys.POOLING,
    "Dense": keys.DENSE,
    "LayerNorm": keys.LAYER_NORM,
    "Normalize": keys.NORMALIZE,
    "Dropout": keys.DROPOUT,
    "whole": keys.WHOLE,
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return ask_sentence_transformers(tmp_path_factory.mktemp("saved"))


@pytest.mark.parametrize("name", CASES)
def test_its_answers_are_those_that_ours_are_compared_with(name: str, answers: Answers) -> None:
    expected = json.loads(ANSWERS.read_text(encoding="utf-8"))
    np.testing.assert_allclose(answers.rows[name], expected[name], atol=2e-5)


@pytest.mark.parametrize("name", TABLES)
def test_every_key_of_its_files_is_known(name: str, answers: Answers) -> None:
    table = TABLES[name]
    known = {*table.followed, *table.harmless, *table.refused}
    assert {*answers.keys[name]} - known == set()


def test_every_module_is_known(answers: Answers) -> None:
    assert {*answers.modules} == {*keys.SERVED_MODULES, *keys.REFUSED_MODULES} - {"Asym"}
