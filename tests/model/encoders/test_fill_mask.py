"""Masks are filled as transformers' own pipeline fills them, and mistakes are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stub_server import StubServer

from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.fill_mask.filling import FillMask
from tests.support.other_tokenizers import KINDS, spelt_otherwise
from tests.support.served_encoder import (
    assert_same,
    pipeline,
    request,
    served,
    written,
)
from tests.support.tiny_encoders import texts, tiny_encoder

AUTO_CLASS = "AutoModelForMaskedLM"
TASK = "fill-mask"
TEXTS = [
    "the cat sat on the {} .",
    "{} lives in Paris, and Anna sees {} in {}!",
    "{}",
    f"{texts(1, seed=9)[0]} {{}} " + texts(3, longest=70, seed=6)[-1],
    "Ännchen 🐈 {}\n xyz",
]


def masked(text: str, mask: str) -> str:
    return text.replace("{}", mask)


@pytest.mark.parametrize("kind", ["bert", *KINDS])
def test_masks_of_texts_in_one_batch_are_filled_as_in_transformers(
    kind: str, tmp_path: Path
) -> None:
    make = spelt_otherwise if kind in KINDS else tiny_encoder
    model = make(kind, AUTO_CLASS, tmp_path / "model")
    reference = pipeline(TASK, model)
    mask = reference.tokenizer.mask_token
    asked: list[dict[str, Any]] = [
        {"text_input": masked(text, mask), "top_k": top_k} for text in TEXTS for top_k in (1, 5, 20)
    ]
    asked += [
        {"text_input": masked(text, mask), "targets": ["dog", "red", "house"]} for text in TEXTS
    ]
    with served(tmp_path, TASK, model) as server:
        requests = [request(**{"truncate": True, **one}) for one in asked]
        replies = [pending.reply() for pending in server.send_together(requests)]
    for reply, one in zip(replies, asked, strict=True):
        expected = reference(one.pop("text_input"), tokenizer_kwargs={"truncation": True}, **one)
        assert_same(written(reply), expected)


def test_five_predictions_are_answered_unless_the_request_says_otherwise(
    server: StubServer, model: Path
) -> None:
    text = "the [MASK] sat on the mat"
    assert_same(written(server.infer(request(text_input=text))), pipeline(TASK, model)(text))


def test_a_target_of_several_tokens_counts_as_its_first(server: StubServer, model: Path) -> None:
    text = "the [MASK] sat on the mat"
    targets = ["cat", "catdog", "Paris", ""]
    got = written(server.infer(request(text_input=text, targets=targets)))
    assert_same(got, pipeline(TASK, model)(text, targets=targets[:3]))


def test_rows_as_wide_as_the_vocabulary_do_not_leave_the_engine() -> None:
    encodings = [
        Encoding([5, 4, 6], None, (1,), wants=(2, ())),
        Encoding([4, 4], None, (0, 1), wants=(3, (7, 2))),
        Encoding([4], None, (0,), wants=(2, ())),
        Encoding([1, 2, 3], None, (0, 2), wants=(1, ())),
    ]
    draw = torch.Generator().manual_seed(5)
    logits = [torch.randn(one.num_outputs, 50_000, generator=draw) for one in encodings]
    kept = FillMask.__new__(FillMask).reduce(logits, encodings)
    assert [tuple(one.shape) for one in kept] == [(1, 2, 2), (2, 2, 2), (1, 2, 2), (2, 2, 1)]
    for encoding, row, one in zip(encodings, logits, kept, strict=True):
        shares = row.softmax(-1)
        torch.testing.assert_close(one[:, 0], shares.gather(-1, one[:, 1].long()))
        if encoding.wants[1]:
            assert set(one[:, 1].int().flatten().tolist()) == {2, 7}
