"""Classifiers of a decoder's shape, whose logits come of a text's last token, answer as
transformers' own model does of each text alone, whatever their files say of padding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from triton_python_backend_utils import TritonModelException

from hf_triton.encoder.runners.encoder_runner import RunnerSetup, select_runner
from hf_triton.encoder.runners.padded_runner import EQUAL_LENGTHS, PADDED
from hf_triton.encoder.texts.encoding import Encoding, set_padding
from hf_triton.runtime.trial import RunnerSpec
from tests.support.served_encoder import outputs_of, request, served
from tests.support.tiny_encoders import CONTEXT, texts, tiny_tokenizer
from tests.support.tiny_models import tiny_values, with_large_weights

TASK, AUTO_CLASS = "text-classification", "AutoModelForSequenceClassification"
TEXTS = texts(9)


def classifier(folder: Path, kind: str, more: int = 0, pads: str | None = None, **own: Any) -> Path:
    """One with ``more`` embeddings than tokens; ``pads`` is the tokenizer's token for padding."""
    tokenizer = tiny_tokenizer("distilbert")
    tokenizer.pad_token = pads
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None, **own}
    sizes = {"vocab_size": len(tokenizer) + more, "num_labels": 3}
    config = transformers.AutoConfig.for_model(kind, **{**tiny_values(kind)[1], **special, **sizes})
    torch.manual_seed(7)
    model = with_large_weights(getattr(transformers, AUTO_CLASS).from_config(config))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@torch.inference_mode()
def assert_same(got: list[Any], folder: Path) -> None:
    """They are the model's own logits of each text alone."""
    model = getattr(transformers, AUTO_CLASS).from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for one, text in zip(got, TEXTS, strict=True):
        expected = model(**tokenizer(text, return_tensors="pt")).logits[0].numpy()
        np.testing.assert_allclose(one, expected, atol=1e-3)


def answers(folder: Path, model: Path, **keys: Any) -> list[Any]:
    with served(folder, TASK, model, **keys) as server:
        requests = [request(("logits",), text_input=text) for text in TEXTS]
        replies = [pending.reply() for pending in server.send_together(requests)]
    return [outputs_of(reply)["logits"] for reply in replies]


@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2"])
def test_a_classifier_without_padding_classifies_by_the_last_token(
    kind: str, tmp_path: Path
) -> None:
    model = classifier(tmp_path / "model", kind)
    assert_same(answers(tmp_path, model), model)


def test_padding_at_a_texts_end_is_passed_over_where_the_model_names_it(tmp_path: Path) -> None:
    """The padding token is the one that every text ends with, as in many models."""
    model = classifier(tmp_path / "model", "llama", pads="[SEP]", pad_token_id=2)
    assert_same(answers(tmp_path, model), model)


@pytest.mark.parametrize(
    "more, pads, chosen",
    [(0, None, EQUAL_LENGTHS), (0, "[PAD]", PADDED), (7, None, PADDED)],
)
def test_runners_that_pad_batches_answer_the_same(
    more: int, pads: str | None, chosen: RunnerSpec, tmp_path: Path
) -> None:
    folder = classifier(tmp_path / "model", "llama", more, pads)
    model = getattr(transformers, AUTO_CLASS).from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    set_padding(model.config, tokenizer)
    setup = RunnerSetup(model, torch.device("cpu"), "sequences", CONTEXT, has_token_types=False)
    runner = select_runner(setup, (PADDED, EQUAL_LENGTHS))
    assert runner.name == chosen.name
    outputs = runner.forward([Encoding(tokenizer(text)["input_ids"]) for text in TEXTS])
    assert_same([output.numpy() for output in outputs], folder)


@pytest.mark.parametrize(
    "own, more, pads, chosen",
    [
        (5, 7, "[PAD]", 5),
        (None, 7, "[PAD]", "the last"),  # which no text has
        (None, 0, "[PAD]", 0),
        (None, 0, "[SEP]", -1),  # every text has it
        (None, 0, None, -1),
    ],
)
def test_the_token_for_padding_is_one_that_no_text_ends_with(
    own: int | None, more: int, pads: str | None, chosen: int | str
) -> None:
    tokenizer = tiny_tokenizer("distilbert")
    tokenizer.pad_token = pads
    config = transformers.LlamaConfig(vocab_size=len(tokenizer) + more, pad_token_id=own)
    set_padding(config, tokenizer)
    assert config.pad_token_id == (len(tokenizer) + 6 if chosen == "the last" else chosen)


def test_a_decoder_that_scores_by_a_word_says_what_it_is(tmp_path: Path) -> None:
    model = classifier(tmp_path / "model", "mistral")
    config = transformers.AutoConfig.from_pretrained(model)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(model)
    with (
        pytest.raises(TritonModelException, match=r"a decoder \(MistralForCausalLM\) .*LogitScore"),
        served(tmp_path, TASK, model),
    ):
        pass
