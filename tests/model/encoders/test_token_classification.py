"""Entities are those of transformers' own pipeline, offsets and all, and mistakes are named."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import triton_python_backend_utils as pb_utils
from stub_server import StubServer

from hf_triton.encoder.runners.runner import RunnerSetup, reference_forward
from hf_triton.encoder.sentence_transformers.reading import SentenceFiles
from hf_triton.encoder.task import Prepared, TaskSetup
from hf_triton.encoder.texts.tokenization import Tokenization
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.token_classification.entities import STRATEGIES
from hf_triton.token_classification.options import Options
from hf_triton.token_classification.tagging import TokenClassification
from tests.support import served_encoder
from tests.support.other_tokenizers import KINDS, spelt_otherwise
from tests.support.served_encoder import (
    assert_same,
    fields,
    refused,
    request,
    rows,
    served,
    written,
)
from tests.support.tiny_encoders import texts, tiny_encoder

LABELS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}
AUTO_CLASS = "AutoModelForTokenClassification"
TASK = "token-classification"
TEXTS = [
    *texts(6, longest=80),
    "Anna lives in Paris, Peter's cat works!",
    "  Ännchen 🐈 naïve\tParis\n\nLondon — ☃ xyz日本語  ",
    "unbelievable greenhouse Parisian livesworks",
]
LONG = " ".join(texts(12, longest=70, seed=4))


def labelled() -> dict[str, Any]:
    return {"id2label": LABELS, "label2id": {label: i for i, label in LABELS.items()}}


def pipeline(model: Path) -> Any:
    found = served_encoder.pipeline(TASK, model)

    def ask(text: str, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its fallback heuristic
            return found(text, **options)

    return ask


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_entities_of_texts_in_one_batch_are_transformers_own(
    architecture: str, tmp_path: Path
) -> None:
    model = tiny_encoder(architecture, AUTO_CLASS, tmp_path / "model", **labelled())
    asked = [(text, strategy) for text in TEXTS for strategy in STRATEGIES]
    requests = [request(text_input=text, aggregation_strategy=how) for text, how in asked]
    with served(tmp_path, TASK, model) as server:
        replies = [pending.reply() for pending in server.send_together(requests)]
    reference = pipeline(model)
    for reply, (text, strategy) in zip(replies, asked, strict=True):
        assert_same(written(reply), reference(text, aggregation_strategy=strategy))


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_are_right_where_tokens_hold_bytes_or_spaces(kind: str, tmp_path: Path) -> None:
    model = spelt_otherwise(kind, AUTO_CLASS, tmp_path / "model", **labelled())
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


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder("bert", AUTO_CLASS, tmp_path_factory.mktemp("tagger"), **labelled())


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
@pytest.mark.parametrize("stride", [0, 1, 40])
def test_windows_of_a_long_text_are_merged_as_in_transformers(
    stride: int, strategy: str, server: StubServer, model: Path
) -> None:
    asked = request(text_input=LONG, stride=stride, aggregation_strategy=strategy)
    expected = pipeline(model)(LONG, stride=stride, aggregation_strategy=strategy)
    got = written(server.infer(asked))
    assert got[-1]["end"] > len(LONG) // 2, "there is more than one window"
    assert_same(got, expected)


def test_the_strategy_is_simple_unless_the_request_says_otherwise(
    server: StubServer, model: Path
) -> None:
    expected = pipeline(model)(TEXTS[3], aggregation_strategy="simple")
    assert_same(written(server.infer(request(text_input=TEXTS[3]))), expected)


def test_offsets_count_characters_of_the_text_as_sent(server: StubServer) -> None:
    text = "☃🐈 Anna lives in Paris"
    found = written(server.infer(request(text_input=text, aggregation_strategy="none")))
    words = {text[one["start"] : one["end"]].lower(): one["word"] for one in found}
    assert all(spelt == word.removeprefix("##") for spelt, word in words.items())


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


def test_a_long_text_is_cut_where_the_request_says_so(server: StubServer, model: Path) -> None:
    got = written(server.infer(request(text_input=LONG, truncate=True)))
    assert_same(got, pipeline(model)(LONG, aggregation_strategy="simple"))  # which always cuts


@pytest.mark.parametrize(
    "tensors, parts",
    [
        ({}, ["text_input: missing"]),
        ({"text_input": ""}, ["text_input: got an empty text"]),
        ({"text_input": b"a \xc3"}, ["text_input: not valid UTF-8 at byte 2"]),
        ({"text_input": "\x01"}, ["text_input: the tokenizer makes no token of it"]),
        ({"text_input": "\x01", "stride": 9}, ["text_input: the tokenizer makes no token of it"]),
        ({"text_input": LONG}, ["text_input: got ", "at most 128", "truncate"]),
        (
            {"text_input": "a", "aggregation_strategy": "simpel"},
            ["aggregation_strategy: got another text", "none, simple, first, average, max"],
        ),
        ({"text_input": "a", "stride": -1}, ["stride: got -1", "0 and more"]),
        ({"text_input": "a", "stride": 126}, ["stride: got 126", "0 to 125"]),
        ({"text_input": "a", "stride": 9, "truncate": True}, ["stride and truncate: both given"]),
        (
            {"text_input": "a", "stride": 9, "aggregation_strategy": "none"},
            ["stride: given with aggregation_strategy none"],
        ),
        (
            {"text_input": "a", "ignore_labels": ["O", "PERSON"]},
            ["ignore_labels: got a label that this model has not", "B-LOC, B-PER"],
        ),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(
    tensors: dict[str, Any], parts: list[str], server: StubServer
) -> None:
    refused(server, *parts, **tensors)


def test_flat_json_gives_one_json_text(server: StubServer) -> None:
    status, body = server.generate({"text_input": "Anna lives in Paris"})
    assert status == 200
    assert isinstance(json.loads(body["output"]), list)
    status, body = server.generate({"text_input": "Anna", "aggregation_stratgy": "first"})
    assert status == 400
    assert "did you mean aggregation_strategy?" in body["error"]


def test_characters_are_written_as_they_are(server: StubServer) -> None:
    asked = request(text_input="Ännchen sees 日本 ö", ignore_labels="", aggregation_strategy="none")
    (text,) = server.infer(asked).texts("output")
    assert "ä" in text
    assert "日" in text
    assert "\\u" not in text


def test_the_options_change_what_a_request_does_not_say(model: Path, tmp_path: Path) -> None:
    options = {"aggregation_strategy": "max", "ignore_labels": "O, PER", "stride": 30}
    reference = pipeline(model)
    with served(tmp_path, TASK, model, options=options) as server:
        got = written(server.infer(request(text_input=LONG)))
        cut = written(server.infer(request(text_input=LONG, truncate=True)))
        short = written(server.infer(request(text_input="a cat", aggregation_strategy="none")))
        refused(server, "at most 128", text_input=LONG, aggregation_strategy="none")
    how: dict[str, Any] = {"aggregation_strategy": "max", "ignore_labels": ["O", "PER"]}
    assert_same(got, reference(LONG, stride=30, **how))
    assert_same(cut, reference(LONG, **how))
    assert_same(short, reference("a cat", ignore_labels=["O", "PER"]))


def test_more_windows_than_allowed_are_refused(model: Path, tmp_path: Path) -> None:
    options = {"stride": 100, "max_num_windows": 3}
    with served(tmp_path, TASK, model, options=options) as server:
        refused(server, "text_input: got ", "windows, allowed: 3", text_input=LONG)
        refused(server, "got 120000 characters", text_input="a cat " * 20_000)
        assert server.infer(request(text_input="a cat " * 60)).ok


def test_a_clients_batch_has_a_row_for_each_text(model: Path, tmp_path: Path) -> None:
    reference = pipeline(model)
    strategies = ["none", "first", "simple"]
    with served(tmp_path, TASK, model, max_batch_size=8) as server:
        asked = rows(text_input=[LONG, *TEXTS[4:6]], stride=[20, 20, 20])
        replies = (
            server.infer(asked),
            server.infer(rows(text_input=TEXTS[3:6], aggregation_strategy=strategies)),
        )
    assert [reply.outputs["output"].shape for reply in replies] == [(3, 1), (3, 1)]
    with_windows, each = ([json.loads(one) for one in reply.texts("output")] for reply in replies)
    for got, text in zip(with_windows, [LONG, *TEXTS[4:6]], strict=True):
        assert_same(got, reference(text, aggregation_strategy="simple", stride=20))
    for got, text, strategy in zip(each, TEXTS[3:6], strategies, strict=True):
        assert_same(got, reference(text, aggregation_strategy=strategy))


def test_options_that_do_not_go_together_are_mistakes() -> None:
    assert [name for name, _ in Options(stride=9, truncation=True).problems()] == ["stride"]
    assert [name for name, _ in Options(stride=9, aggregation_strategy="none").problems()]
    assert [name for name, _ in Options(stride=64, max_length=64).problems()]
    assert not Options(stride=9).problems()


@pytest.mark.parametrize(
    "options, part",
    [
        ({"stride": 126}, "options: stride: got 126, allowed: 0 to 125"),
        ({"ignore_labels": "O,NAME"}, "ignore_labels: got NAME, allowed: B-LOC"),
    ],
    ids=str,
)
def test_what_the_model_cannot_do_is_said_when_it_loads(
    options: dict[str, Any], part: str, model: Path, tmp_path: Path
) -> None:
    with (
        pytest.raises(pb_utils.TritonModelException, match=part),
        served(tmp_path, TASK, model, options=options),
    ):
        pass


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

    found = WithoutOffsets(tiny_encoder("bert", AUTO_CLASS, tmp_path / "model", **labelled()))
    make: Any = transformers.pipeline
    reference = make(TASK, model=found.model, tokenizer=found.tokenizer, device="cpu")
    task = found.task()
    for strategy in ("none", "simple"):
        prepared = task.prepare(
            fields(text_input=TEXTS[6], aggregation_strategy=strategy), frozenset()
        )
        got = found.written(prepared)
        assert got[0]["start"] is None
        assert_same(got, reference(TEXTS[6], aggregation_strategy=strategy))
    for wrong in ({"aggregation_strategy": "first"}, {"stride": 4}):
        with pytest.raises(RequestError, match=r"no tokenizer\.json"):
            task.prepare(fields(text_input="a cat", **wrong), frozenset())
        with pytest.raises(LoadError, match=r"no tokenizer\.json"):
            found.task(**wrong)
