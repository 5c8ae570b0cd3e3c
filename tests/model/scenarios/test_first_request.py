"""A model that can't answer a request of its own kind does not load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from triton_model_exception import TritonModelException

from hf_triton.runtime.engine.first_request import try_one
from hf_triton.runtime.errors import EngineError, LoadError, RequestError
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.weights.served_model import ServedModel
from tests.support.served_encoder import served
from tests.support.triton import DEMO_MODEL

DEMO = DEMO_MODEL.parent
TASKS = {
    "text-generation": "model",
    "text2text-generation": "translate",
    "image-text-to-text": "seeing",
    "feature-extraction": "embedding",
    "fill-mask": "mask",
}


def without_tokenizer(model: Path, folder: Path) -> Path:
    """A copy of the model as it is where the files of its tokenizer were left out."""
    return shutil.copytree(
        model, folder, ignore=shutil.ignore_patterns("*token*", "vocab*", "*.model", "merges*")
    )


def refusal(folder: Path, task: str, model: Path, **keys: Any) -> str:
    """The error of a model that does not load."""
    keys |= {"streaming": False} if task in list(TASKS)[:3] else {}
    with pytest.raises(TritonModelException) as caught, served(folder, task, model, **keys):
        pass
    return str(caught.value)


@pytest.mark.parametrize("task", [*TASKS, "pipeline"])
def test_a_model_without_a_tokenizer_does_not_load(task: str, tmp_path: Path) -> None:
    model = without_tokenizer(DEMO / TASKS.get(task, "classifier"), tmp_path / "model")
    options = {"options": {"pipeline": "text-classification"}} if task == "pipeline" else {}
    assert "tokenizer" in refusal(tmp_path, task, model, **options)


def test_a_model_with_another_ones_tokenizer_does_not_load(tmp_path: Path) -> None:
    model = shutil.copytree(DEMO_MODEL, tmp_path / "model")
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"].items()
    tokenizer["model"]["vocab"] = {word: number + 10**6 for word, number in vocabulary}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    said = refusal(tmp_path, "text-generation", model)
    assert "can't answer a first request: text_input: the tokenizer makes token 1000" in said


class Tokenizer:
    """Knows one word."""

    mask_token = "<mask>"
    all_special_ids = (0,)

    def get_vocab(self) -> dict[str, int]:
        return {"<mask>": 0, "ACGT": 1}

    def decode(self, token_ids: list[int]) -> str:
        return "ACGT"


class Answering:
    """Answers a text of its own, and others with an error."""

    tokenizer = Tokenizer()

    def __init__(self, answered: str, error: Exception) -> None:
        self._answered, self._error = answered, error
        self.asked: list[str] = []

    def take(self, request: Request) -> None:
        (text,) = request.inputs["text_input"].tolist()
        self.asked.append(text.decode())
        if self.asked[-1] != self._answered:
            raise self._error
        request.responder.send({}, final=True)


def of_task(task: str) -> ServedModel:
    return ServedModel(
        *(Path(), "m", task, "m", False, None, "auto", None, False, 0, {}, "m"), decoupled=False
    )


@pytest.mark.parametrize(
    "task, answered, error, asked",
    [
        ("text-generation", "I am going", "", ["I am going"]),
        ("text-generation", "ACGT", "text_input: no token", ["I am going", "ACGT"]),
        ("fill-mask", "<mask>", "text_input: long", ["She drinks a cup of <mask>.", "<mask>"]),
        ("text2text-generation", "", "target_lang: missing", [ANY]),
    ],
)
def test_another_text_is_tried_where_one_is_refused(
    task: str, answered: str, error: str, asked: list[object]
) -> None:
    model = Answering(answered, RequestError(error))
    try_one(model, of_task(task), ("text_input",), ())
    assert model.asked == asked


@pytest.mark.parametrize(
    "error, told",
    [
        (RequestError("text_input: no token"), "text_input: no token"),
        (EngineError("no such kernel"), "no such kernel"),
        (ValueError("secret"), "internal error: ValueError"),
    ],
)
def test_what_nothing_is_answered_for_is_told(error: Exception, told: str) -> None:
    with pytest.raises(LoadError, match=f"can't answer a first request: {told}$"):
        try_one(Answering("", error), of_task("text-generation"), ("text_input",), ())
