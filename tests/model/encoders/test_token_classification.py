"""Entities are those of transformers' own pipeline, offsets and all, and mistakes are named."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from stub_server import StubServer

from hf_triton.encoder.runners.encoder_runner import RunnerSetup, reference_forward
from hf_triton.encoder.sentence_transformers.reading import SentenceFiles
from hf_triton.encoder.task import Prepared, TaskSetup
from hf_triton.encoder.texts.tokenization import Tokenization
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.token_classification.options import Options
from hf_triton.token_classification.tagging import STRATEGIES, TokenClassification
from tests.model.encoders.tasks import MODELS
from tests.support import served_encoder
from tests.support.other_tokenizers import KINDS, spelt_otherwise
from tests.support.served_encoder import (
    assert_same,
    fields,
    request,
    served,
    written,
)
from tests.support.tiny_encoders import texts, tiny_encoder

TASK = "token-classification"
AUTO_CLASS, LABELS = MODELS[TASK]
TEXTS = [
    *texts(6, longest=80),
    "Anna lives in Paris, Peter's cat works!",
    "  Ännchen 🐈 naïve\tParis\n\nLondon — ☃ xyz日本語  ",
    "unbelievable greenhouse Parisian livesworks",
]
LONG = " ".join(texts(12, longest=70, seed=4))


def pipeline(model: Path) -> Any:
    found = served_encoder.pipeline(TASK, model)

    def ask(text: str, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its fallback heuristic
            return found(text, **options)

    return ask


def test_entities_of_texts_in_one_batch_are_transformers_own(
    server: StubServer, model: Path
) -> None:
    asked = [(text, strategy) for text in TEXTS for strategy in STRATEGIES]
    requests = [request(text_input=text, aggregation_strategy=how) for text, how in asked]
    replies = [pending.reply() for pending in server.send_together(requests)]
    reference = pipeline(model)
    for reply, (text, strategy) in zip(replies, asked, strict=True):
        assert_same(written(reply), reference(text, aggregation_strategy=strategy))


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_are_right_where_tokens_hold_bytes_or_spaces(kind: str, tmp_path: Path) -> None:
    model = spelt_otherwise(kind, AUTO_CLASS, tmp_path / "model", **LABELS)
    reference = pipeline(model)
    with served(tmp_path, TASK, model) as server:
        for text in TEXTS:
            for strategy in STRATEGIES:
                asked = request(text_input=text, aggregation_strategy=strategy, truncate=True)
                expected = reference(text, aggregation_strategy=strategy)
                assert_same(written(server.infer(asked)), expected)
        for stride in (0, 20):
            asked = request(text_input=LONG, aggregation_strategy="first", stride=stride)
            expected = reference(LONG, aggregation_strategy="first", stride=stride)
            assert_same(written(server.infer(asked)), expected)


@pytest.mark.parametrize("stride, strategy", [(0, "simple"), (1, "first"), (40, "max")])
def test_windows_of_a_long_text_are_merged_as_in_transformers(
    stride: int, strategy: str, server: StubServer, model: Path
) -> None:
    asked = request(text_input=LONG, stride=stride, aggregation_strategy=strategy)
    expected = pipeline(model)(LONG, stride=stride, aggregation_strategy=strategy)
    got = written(server.infer(asked))
    assert got[-1]["end"] > len(LONG) // 2, "there is more than one window"
    assert_same(got, expected)


def test_labels_are_left_out_as_the_request_says(server: StubServer, model: Path) -> None:
    reference = pipeline(model)
    for ignored in (["PER"], ["O", "LOC"], ["B-PER", "I-PER"]):
        for strategy in ("none", "simple"):
            asked = request(
                text_input=TEXTS[2], ignore_labels=ignored, aggregation_strategy=strategy
            )
            expected = reference(TEXTS[2], ignore_labels=ignored, aggregation_strategy=strategy)
            assert_same(written(server.infer(asked)), expected)
    everything = server.infer(
        request(text_input=TEXTS[2], ignore_labels="", aggregation_strategy="none")
    )
    expected = reference(TEXTS[2], ignore_labels=[], aggregation_strategy="none")
    assert_same(written(everything), expected)


def test_characters_are_written_as_they_are(server: StubServer) -> None:
    asked = request(text_input="Ännchen sees 日本 ö", ignore_labels="", aggregation_strategy="none")
    (text,) = server.infer(asked).texts("output")
    assert "ä" in text
    assert "日" in text
    assert "\\u" not in text


class WithoutOffsets:
    """A model whose tokenizer is Python's own: it tells neither offsets nor words."""

    def __init__(self, folder: Path) -> None:
        import transformers
        from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

        fast = transformers.AutoTokenizer.from_pretrained(folder)
        words = sorted(fast.get_vocab().items(), key=lambda word: word[1])
        (folder / "vocab.txt").write_text("\n".join(word for word, _ in words), encoding="utf-8")
        self.tokenizer = BertTokenizerLegacy(str(folder / "vocab.txt"), model_max_length=128)
        self.model = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()

    def task(self, **options: Any) -> TokenClassification:
        tokenization = Tokenization(
            self.tokenizer, max_length=128, truncation=False, has_token_types=True
        )
        saved = SentenceFiles(Path())
        setup = TaskSetup(Options(**options), self.model.config, saved, tokenization, batched=False)
        return TokenClassification(setup)

    def written(self, prepared: Prepared) -> Any:
        device = torch.device("cpu")
        setup = RunnerSetup(self.model, device, "tokens", 128, has_token_types=True)
        logits = [reference_forward(setup, encoding).numpy() for encoding in prepared.encodings]
        return json.loads(prepared.answer(logits)["output"][0])


def test_a_tokenizer_without_offsets_gives_entities_without_them(tmp_path: Path) -> None:
    import transformers

    found = WithoutOffsets(tiny_encoder("bert", AUTO_CLASS, tmp_path / "model", **LABELS))
    make: Any = transformers.pipeline
    reference = make(TASK, model=found.model, tokenizer=found.tokenizer, device="cpu")
    task = found.task()
    for strategy in ("none", "simple"):
        prepared = task.prepare(
            fields(text_input=TEXTS[6], aggregation_strategy=strategy), frozenset(("output",))
        )
        got = found.written(prepared)
        assert got[0]["start"] is None
        assert_same(got, reference(TEXTS[6], aggregation_strategy=strategy))
    for wrong in ({"aggregation_strategy": "first"}, {"stride": 4}):
        with pytest.raises(RequestError, match=r"no tokenizer\.json"):
            task.prepare(fields(text_input="a cat", **wrong), frozenset(("output",)))
        with pytest.raises(LoadError, match=r"no tokenizer\.json"):
            found.task(**wrong)
