"""The measured encoder: lengths are exact, and a wrong text's embedding is told from the right."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from perf.encoders.check import Check, cosine, read_references
from perf.encoders.model import bert_config, make_encoder, write_tokenizer
from perf.encoders.references import write_references
from perf.load.closed_loop import AnswerError
from perf.load.requests import LOADS, LONGEST_TEXT, SHORTEST_TEXT, documents


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("encoder")
    make_encoder(made, seed=0)
    return made


def test_texts_are_exactly_as_long_as_they_say(tmp_path: Path) -> None:
    bert_config().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for load, (shortest, longest) in {
        "texts": (SHORTEST_TEXT, LONGEST_TEXT),
        "texts-16": (16, 16),
        "texts-128": (128, 128),
    }.items():
        for request in islice(LOADS[load](0), 20):
            token_ids = tokenizer(request.prompt).input_ids
            assert len(token_ids) == request.num_prompt_tokens
            assert shortest <= len(token_ids) <= longest
            assert tokenizer.unk_token_id not in token_ids


def test_documents_have_100_000_characters_and_come_again() -> None:
    drawn = [request.prompt for request in islice(documents(0), 5)]
    assert all(len(text) >= 100_000 for text in drawn)
    assert drawn[4] == drawn[0] != drawn[1]


def test_references_are_those_of_the_model_and_tell_texts_apart(
    folder: Path, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    write_references(tmp_path / "references.json", folder, ("texts",), seed=0)
    references = read_references(tmp_path / "references.json", "texts")
    request = next(LOADS["texts"](0))
    tokens = AutoTokenizer.from_pretrained(folder)(request.prompt, return_tensors="pt")
    with torch.inference_mode():
        hidden = AutoModel.from_pretrained(folder)(**tokens).last_hidden_state[0]
    assert cosine(references[0], hidden.mean(dim=0).tolist()) > 0.999999
    check = Check(references, min_cosine=0.99)
    check.embedding(0, references[0])
    with pytest.raises(AnswerError, match="cosine to the reference"):
        check.embedding(0, references[8])
