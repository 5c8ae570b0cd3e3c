"""Special tokens that a tokenizer's files ask for and that it does not add are told at load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from hf_triton.runtime.weights.weight_loading import load_tokenizer
from tests.support.served_models import served_model
from tests.support.tiny_encoders import tiny_tokenizer


def saved(folder: Path, **settings: Any) -> Path:
    """A tokenizer that adds nothing, whose settings ask for something."""
    tokenizer = tiny_tokenizer("distilbert")
    tokenizer.backend_tokenizer.post_processor = None
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    (folder / "config.json").write_text('{"model_type": "mistral"}')
    return folder


def load(folder: Path) -> Any:
    return load_tokenizer(served_model(folder, model=".", local=True), folder)


@pytest.mark.parametrize(
    "settings, told",
    [
        ({"add_eos_token": True, "add_bos_token": False}, "add_eos_token"),
        ({"add_eos_token": True, "add_bos_token": True}, "add_bos_token and add_eos_token"),
    ],
)
def test_tokens_that_are_asked_for_and_not_added_are_told(
    settings: dict[str, bool], told: str, tmp_path: Path, log_lines: list[str]
) -> None:
    tokenizer = load(saved(tmp_path, **settings))
    assert len(tokenizer("a").input_ids) == 1
    (line,) = log_lines
    assert line.startswith(f"W tiny: tokenizer_config.json asks for {told}, but tokenizer.json")
    # What the line says to do.
    asked = {name: True for name, value in settings.items() if value}
    transformers.AutoTokenizer.from_pretrained(tmp_path, **asked).save_pretrained(tmp_path)
    log_lines.clear()
    assert len(load(tmp_path)("a").input_ids) == 1 + len(asked)
    assert log_lines == []


def test_a_tokenizer_that_does_what_is_asked_is_not_told_of(
    tmp_path: Path, log_lines: list[str]
) -> None:
    load(saved(tmp_path, add_bos_token=False))
    assert log_lines == []
