"""Masks are filled as transformers' own pipeline fills them, and mistakes are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import triton_python_backend_utils as pb_utils
from stub_server import StubServer

from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.fill_mask.filling import Choice, MaskedEncoding, best_tokens
from hf_triton.fill_mask.options import Options
from tests.support.other_tokenizers import KINDS, spelt_otherwise
from tests.support.served_encoder import (
    assert_same,
    pipeline,
    refused,
    request,
    rows,
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


@pytest.mark.parametrize("kind", ["bert", "roberta", *KINDS])
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


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder("bert", AUTO_CLASS, tmp_path_factory.mktemp("filler"))


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


@pytest.mark.parametrize(
    "tensors, parts",
    [
        ({}, ["text_input: missing"]),
        ({"text_input": " "}, ["text_input: got an empty text"]),
        ({"text_input": b"[MASK] \xff"}, ["text_input: not valid UTF-8 at byte 7"]),
        ({"text_input": "a cat"}, ["text_input: got a text without a mask token", "[MASK]"]),
        ({"text_input": "a <mask>"}, ["text_input: got a text without a mask token", "[MASK]"]),
        ({"text_input": "[MASK] " * 65}, ["got 65 mask tokens", "at most 64"]),
        ({"text_input": "[MASK]" + " a" * 200}, ["text_input: got 203 tokens", "at most 128"]),
        (
            {"text_input": "a " * 200 + "[MASK]", "truncate": True},
            ["text_input: its [MASK] lies beyond the 128 tokens that are kept"],
        ),
        ({"text_input": "[MASK]", "top_k": 0}, ["top_k: got 0, allowed: 1 to 100"]),
        ({"text_input": "[MASK]", "top_k": -3}, ["top_k: got -3, allowed: 1 to 100"]),
        ({"text_input": "[MASK]", "top_k": 101}, ["top_k: got 101, allowed: 1 to 100"]),
        ({"text_input": "[MASK]", "targets": ["", ""]}, ["targets: got empty texts"]),
        ({"text_input": "[MASK]", "targets": [" "]}, ["targets: got a text that is no token"]),
        ({"text_input": "[MASK]", "targets": [b"\xff"]}, ["targets: not valid UTF-8 at byte 0"]),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(
    tensors: dict[str, Any], parts: list[str], server: StubServer
) -> None:
    refused(server, *parts, **tensors)


def test_flat_json_takes_a_list_of_targets(server: StubServer) -> None:
    body = {"text_input": "the [MASK] sat", "targets": ["cat", "dog"], "top_k": 1}
    status, answer = server.generate(body)
    assert status == 200
    assert len(json.loads(answer["output"])) == 1
    status, answer = server.generate({"text_input": "the [MASK] sat", "top_p": 1})
    assert status == 400
    assert "top_p: unknown parameter, did you mean top_k?" in answer["error"]


def test_the_options_change_what_a_request_does_not_say(model: Path, tmp_path: Path) -> None:
    options = {"top_k": 2, "max_top_k": 3, "max_num_masks": 1, "truncation": True}
    long = "[MASK]" + " a" * 200
    with served(tmp_path, TASK, model, options=options) as server:
        got = written(server.infer(request(text_input=long)))
        refused(server, "top_k: got 4, allowed: 1 to 3", text_input="[MASK]", top_k=4)
        refused(server, "got 2 mask tokens", text_input="[MASK] [MASK]")
    assert_same(got, pipeline(TASK, model)(long, top_k=2, tokenizer_kwargs={"truncation": True}))


def test_a_clients_batch_has_a_row_for_each_text(model: Path, tmp_path: Path) -> None:
    reference = pipeline(TASK, model)
    given = [masked(text, "[MASK]") for text in TEXTS[:3]]
    targets = [["cat", "dog"], ["red", ""], ["", ""]]
    with served(tmp_path, TASK, model, max_batch_size=4) as server:
        reply = server.infer(rows(text_input=given, top_k=[1, 3, 2], targets=targets))
    assert reply.outputs["output"].shape == (3, 1)
    got = [json.loads(text) for text in reply.texts("output")]
    assert_same(got[0], reference(given[0], top_k=1, targets=["cat", "dog"]))
    assert_same(got[1], reference(given[1], targets=["red"]))
    assert_same(got[2], reference(given[2], top_k=2))


def test_rows_as_wide_as_the_vocabulary_do_not_leave_the_engine() -> None:
    encodings = [
        MaskedEncoding([5, 4, 6], None, (1,), Choice(2)),
        MaskedEncoding([4, 4], None, (0, 1), Choice(3, (7, 2))),
        MaskedEncoding([4], None, (0,), Choice(2)),
        Encoding([1, 2, 3], None, (0, 2)),
    ]
    draw = torch.Generator().manual_seed(5)
    logits = [torch.randn(one.num_outputs, 50_000, generator=draw) for one in encodings]
    kept = best_tokens(logits, encodings)
    assert [tuple(one.shape) for one in kept] == [(1, 2, 2), (2, 2, 2), (1, 2, 2), (2, 2, 1)]
    for encoding, row, one in zip(encodings, logits, kept, strict=True):
        shares = row.softmax(-1)
        torch.testing.assert_close(one[:, 0], shares.gather(-1, one[:, 1].long()))
        if isinstance(encoding, MaskedEncoding) and encoding.choice.targets:
            assert set(one[:, 1].int().flatten().tolist()) == {2, 7}


def test_options_that_do_not_go_together_are_mistakes() -> None:
    assert [name for name, _ in Options(top_k=9, max_top_k=8).problems()] == ["top_k"]
    assert not Options().problems()


def test_a_tokenizer_without_a_mask_token_is_said_when_it_loads(tmp_path: Path) -> None:
    model = tiny_encoder("bert", AUTO_CLASS, tmp_path / "model")
    path = model / "tokenizer_config.json"
    config = {k: v for k, v in json.loads(path.read_text()).items() if k != "mask_token"}
    path.write_text(json.dumps(config))
    with (
        pytest.raises(pb_utils.TritonModelException, match="needs a tokenizer with a mask token"),
        served(tmp_path, TASK, model),
    ):
        pass
