"""Requests to every encoder task: each mistake is named, an option stands for a field that a
request leaves out, a client's batch has a row for each request, flat JSON is taken.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from triton_python_backend_utils import TritonModelException

from hf_triton.encoder.options import EncoderOptions
from hf_triton.fill_mask.options import Options as FillMask
from hf_triton.question_answering.options import Options as QuestionAnswering
from hf_triton.text_classification.options import Options as TextClassification
from hf_triton.token_classification.options import Options as TokenClassification
from hf_triton.zero_shot_classification.options import Options as ZeroShot
from tests.model.encoders.conftest import Servers
from tests.model.encoders.ensemble_stub import close
from tests.model.encoders.tasks import COLUMNS, MODELS, REQUESTS, model_of
from tests.support.served_encoder import outputs_of, refused, request, rows, served
from tests.support.tiny_encoders import tiny_encoder

EMBED, CLASSIFY, MASK = "feature-extraction", "text-classification", "fill-mask"
ZERO_SHOT, TAG, READ = "zero-shot-classification", "token-classification", "question-answering"
FAR = "a cat " * 80  # 162 tokens


def _short(value: object) -> str:
    return str(value)[:40]


WRONG_READS: list[tuple[dict[str, Any], str]] = [
    ({"question": ""}, "question: got an empty text"),
    ({"context": "\n"}, "context: got an empty text"),
    ({"context": b"a \xf0"}, "context: not valid UTF-8 at byte 2"),
    ({"question": b"\xff"}, "question: not valid UTF-8 at byte 0"),
    ({"top_k": 0}, "top_k: got 0, allowed: 1 to 100"),
    ({"top_k": 101}, "top_k: got 101, allowed: 1 to 100"),
    ({"max_answer_len": 0}, "max_answer_len: got 0, allowed: 1 and more"),
    ({"max_question_len": 0}, "max_question_len: got 0, allowed: 1 and more"),
    ({"max_question_len": 3}, "at most 3 (max_question_len)"),
    ({"max_seq_len": 129}, "max_seq_len: got 129, allowed: 5 to 128"),
    ({"doc_stride": -1}, "doc_stride: got -1, allowed: 0 and more"),
    ({"doc_stride": 124, "context": FAR}, "doc_stride: got 124, allowed: 0 to 123"),
    ({"question": "who " * 61, "context": FAR}, "question: got 61 tokens, allowed: at most 60"),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (EMBED, {"dimensions": 3}, "text_input: missing"),
    (EMBED, {"input_text": []}, "input_text: got an empty list"),
    (EMBED, {"input_text": ["a"], "text_input": "a"}, "text_input and input_text: got both"),
    (EMBED, {"text_input": b"a \xe4"}, "text_input: not valid UTF-8 at byte 2"),
    (EMBED, {"text_input": "a", "prompt_name": "x"}, "has no prompts"),
    (EMBED, {"text_input": "a", "dimensions": 0}, "dimensions: got 0"),
    (EMBED, {"text_input": "a", "dimensions": 33}, "dimensions: got 33"),
    (EMBED, {"text_input": FAR}, "text_input: got 162 tokens, this model takes at most 128"),
    (EMBED, {"input_text": ["a", FAR]}, "(row 1 of"),
    (CLASSIFY, {}, "text_input: missing"),
    (CLASSIFY, {"text_pair": "a cat"}, "text_input: missing, send text_input and text_pair"),
    (CLASSIFY, {"text_input": ""}, "text_input: got an empty text"),
    (CLASSIFY, {"text_input": " \n"}, "text_input: got an empty text"),
    (CLASSIFY, {"text_input": "a", "text_pair": ""}, "text_pair: got an empty text"),
    (CLASSIFY, {"text_input": b"\xff a"}, "text_input: not valid UTF-8 at byte 0"),
    (CLASSIFY, {"text_input": "a", "top_k": 0}, "top_k: got 0, allowed: -1 (all labels)"),
    (CLASSIFY, {"text_input": "a", "top_k": -2}, "top_k: got -2"),
    (CLASSIFY, {"text_input": "a", "function_to_apply": "x"}, "softmax, sigmoid, none"),
    (CLASSIFY, {"text_input": FAR}, "got 162 tokens, this model takes at most 128"),
    (CLASSIFY, {"text_input": FAR[:200], "text_pair": FAR[:200]}, "text_input and text_pair"),
    (CLASSIFY, {"input_text": ["a", "b"], "text_pair": ["c"] * 3}, "text_pair: got 3 elements"),
    (CLASSIFY, {"input_text": ["a", " "]}, "input_text: got an empty text"),
    (CLASSIFY, {"text_input": "a", "text_pair": ["b", "c"]}, "text_pair: got 2 elements"),
    (MASK, {}, "text_input: missing"),
    (MASK, {"text_input": " "}, "text_input: got an empty text"),
    (MASK, {"text_input": "a <mask>"}, "a text without a mask token, allowed: [MASK]"),
    (MASK, {"text_input": "[MASK] " * 65}, "got 65 mask tokens, allowed: at most 64"),
    (MASK, {"text_input": "[MASK]" + " a" * 200}, "text_input: got 203 tokens"),
    (
        *(MASK, {"text_input": "a " * 200 + "[MASK]", "truncate": True}),
        "text_input: its [MASK] lies beyond the 128 tokens that are kept",
    ),
    (MASK, {"text_input": "[MASK]", "top_k": 0}, "top_k: got 0, allowed: 1 to 100"),
    (MASK, {"text_input": "[MASK]", "top_k": 101}, "top_k: got 101, allowed: 1 to 100"),
    (MASK, {"text_input": "[MASK]", "targets": ["", ""]}, "targets: got empty texts"),
    (MASK, {"text_input": "[MASK]", "targets": [" "]}, "targets: got a text that is not one"),
    (MASK, {"text_input": "[MASK]", "targets": [b"\xff"]}, "targets: not valid UTF-8 at byte 0"),
    (ZERO_SHOT, {"text_input": "a cat"}, "candidate_labels: missing"),
    (ZERO_SHOT, {"candidate_labels": ["b"]}, "text_input: missing"),
    (ZERO_SHOT, {"text_input": "a", "candidate_labels": [""]}, "candidate_labels: missing"),
    (ZERO_SHOT, {"text_input": "a", "candidate_labels": " , ,"}, "candidate_labels: missing"),
    (ZERO_SHOT, {"text_input": "a", "candidate_labels": ["b", " "]}, "candidate_labels: got an e"),
    (ZERO_SHOT, {"text_input": "", "candidate_labels": "b"}, "text_input: got an empty text"),
    (ZERO_SHOT, {"text_input": "a", "candidate_labels": ["b"] * 1001}, "got 1001 labels, allowed"),
    (ZERO_SHOT, {"text_input": "a", "candidate_labels": "b," * 1001}, "got 1002 labels, allowed"),
    (ZERO_SHOT, {"text_input": "a", "candidate_labels": [b"\xff"]}, "candidate_labels: not valid"),
    (
        *(ZERO_SHOT, {"text_input": "a", "candidate_labels": "b", "hypothesis_template": "so"}),
        "hypothesis_template: got a text without {}",
    ),
    (
        *(ZERO_SHOT, {"text_input": FAR, "candidate_labels": "b"}),
        "text_input with candidate_labels: got",
    ),
    (
        *(ZERO_SHOT, {"text_input": "a", "candidate_labels": FAR, "truncate": True}),
        "may not be cut",
    ),
    (TAG, {"text_input": ""}, "text_input: got an empty text"),
    (TAG, {"text_input": "\x01"}, "text_input: the tokenizer makes no token of it"),
    (TAG, {"text_input": "\x01", "stride": 9}, "text_input: the tokenizer makes no token of it"),
    (TAG, {"text_input": FAR}, "at most 128; send truncate"),
    (
        *(TAG, {"text_input": "a", "aggregation_strategy": "simpel"}),
        "aggregation_strategy: got another text, allowed: none, simple, first, average, max",
    ),
    (TAG, {"text_input": "a", "stride": -1}, "stride: got -1, allowed: 0 and more"),
    (TAG, {"text_input": "a", "stride": 126}, "stride: got 126, allowed: 0 to 125"),
    (TAG, {"text_input": "a", "stride": 9, "truncate": True}, "stride and truncate: both given"),
    (
        *(TAG, {"text_input": "a", "stride": 9, "aggregation_strategy": "none"}),
        "stride: given with aggregation_strategy none",
    ),
    (
        TAG,
        {"text_input": "a", "ignore_labels": ["O", "X"]},
        "a label that this model does not have",
    ),
    (TAG, {"text_input": "a cat " * 20_000}, "got 120000 characters"),
    (READ, {"question": "who ?"}, "context: missing, send context and question together"),
    (READ, {"context": "a cat"}, "question: missing"),
    *(
        (READ, {"question": "who lives in Paris ?", "context": "a cat", **wrong}, message)
        for wrong, message in WRONG_READS
    ),
]


@pytest.mark.threat("empty-texts")
@pytest.mark.parametrize("task, tensors, message", REFUSED, ids=_short)
def test_what_is_wrong_is_named_and_its_neighbours_are_answered(
    task: str, tensors: dict[str, Any], message: str, servers: Servers
) -> None:
    good = request(**REQUESTS[task][0])
    before, bad, after = servers(task).send_together([good, request(**tensors), good])
    assert (bad.reply().status, message in bad.reply().error) == (400, True), bad.reply()
    assert before.reply().ok
    assert after.reply().ok


# task, options, a request, what it says with the options, and what they refuse
OPTIONS: list[
    tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], list[tuple[dict[str, Any], str]]]
] = [
    (EMBED, {"dimensions": 6}, {"text_input": "a cat"}, {"dimensions": 6}, []),
    (EMBED, {"truncation": True}, {"text_input": FAR}, {"truncate": True}, []),
    (EMBED, {"max_length": 9}, {"text_input": "a"}, {}, [({"text_input": FAR}, "at most 9")]),
    (
        CLASSIFY,
        {"top_k": 2, "function_to_apply": "sigmoid", "pairs": "required", "truncation": True},
        {"text_input": "a cat", "text_pair": "a dog " * 200},
        {"top_k": 2, "function_to_apply": "sigmoid", "truncate": True},
        [
            ({"text_input": "a cat"}, "text_pair: missing"),
            ({"text_pair": "a cat"}, "text_input: missing"),
        ],
    ),
    (
        MASK,
        {"top_k": 2, "max_top_k": 3, "max_num_masks": 1, "truncation": True},
        {"text_input": "[MASK]" + " a" * 200},
        {"top_k": 2, "truncate": True},
        [
            ({"text_input": "[MASK]", "top_k": 4}, "top_k: got 4, allowed: 1 to 3"),
            ({"text_input": "[MASK] [MASK]"}, "got 2 mask tokens"),
        ],
    ),
    (
        ZERO_SHOT,
        {"hypothesis_template": "{} is what it is .", "multi_label": True},
        {"text_input": "the cat sat", "candidate_labels": ["food", "Paris"]},
        {"hypothesis_template": "{} is what it is .", "multi_label": True},
        [],
    ),
    (
        TAG,
        {"aggregation_strategy": "max", "ignore_labels": "O, PER", "stride": 30},
        {"text_input": FAR},
        {"aggregation_strategy": "max", "ignore_labels": ["O", "PER"], "stride": 30},
        [({"text_input": FAR, "aggregation_strategy": "none"}, "at most 128")],
    ),
    (
        TAG,
        {"stride": 100, "max_num_windows": 3},
        {"text_input": "a cat"},
        {},
        [({"text_input": FAR * 3}, "windows, allowed: 3")],
    ),
    (
        READ,
        {"max_seq_len": 60, "doc_stride": 20, "top_k": 3, "max_answer_len": 4,
         "handle_impossible_answer": True, "align_to_words": False},
        {"question": "who lives in Paris ?", "context": FAR},
        {"max_seq_len": 60, "doc_stride": 20, "top_k": 3, "max_answer_len": 4,
         "handle_impossible_answer": True, "align_to_words": False},
        [],
    ),
]  # fmt: skip


@pytest.mark.parametrize("task, options, asked, said, wrong", OPTIONS, ids=_short)
def test_an_option_stands_for_what_a_request_leaves_out(
    task: str,
    options: dict[str, Any],
    asked: dict[str, Any],
    said: dict[str, Any],
    wrong: list[tuple[dict[str, Any], str]],
    servers: Servers,
    models: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    with served(tmp_path, task, models(task), options=options) as server:
        got = outputs_of(server.infer(request(**asked)))
        for tensors, message in wrong:
            refused(server, message, **tensors)
    expected = outputs_of(servers(task).infer(request(**asked, **said)))
    assert got.keys() == expected.keys()
    assert all(close(got[name], expected[name]) for name in got)


@pytest.mark.parametrize("task", COLUMNS)
def test_a_clients_batch_has_a_row_for_each_request(
    task: str, servers: Servers, models: Callable[[str], Path], tmp_path: Path
) -> None:
    columns = COLUMNS[task]
    with served(tmp_path, task, models(task), max_batch_size=8) as server:
        outputs = outputs_of(server.infer(rows(**columns)))
    for number in range(3):
        row = {name: column[number] for name, column in columns.items()}
        lists = {name: [*filter(None, one)] for name, one in row.items() if isinstance(one, list)}
        asked = {**row, **lists}
        asked = {name: one for name, one in asked.items() if one != []}
        for name, alone in outputs_of(servers(task).infer(request(**asked))).items():
            got = outputs[name][number]
            assert close(got[: alone.size], alone), (name, got, alone)
            assert not any(got[alone.size :]), "what a row has less is empty"


BAD_ROWS: list[tuple[str, dict[str, Any], str, int | None]] = [
    (CLASSIFY, {"text_input": ["a cat", " "]}, "text_input: got an empty text", 1),
    (CLASSIFY, {"text_input": ["a", "b", FAR]}, "text_input: got 162", 2),
    (CLASSIFY, {"text_input": ["a", "b"], "text_pair": ["", "a"]}, "text_pair: got an empty", 0),
    (CLASSIFY, {"text_input": ["a", "b"], "top_k": [1, 0]}, "top_k: got 0, allowed", 1),
    (CLASSIFY, {"text_input": ["a", b"\xff"]}, "text_input: not valid UTF-8", 1),
    (CLASSIFY, {"text_pair": ["a", "b"]}, "text_input: missing, send text_input and text_", None),
    (CLASSIFY, {"text_input": [""]}, "text_input: got an empty text", None),
    (EMBED, {"text_input": ["a", "b"], "dimensions": [8, 9]}, "dimensions: got 8 and 9", None),
    (READ, {"question": ["a", "b"]}, "context: missing", None),
]


def test_a_bad_row_of_a_clients_batch_is_named(
    models: Callable[[str], Path], tmp_path: Path
) -> None:
    for task in (CLASSIFY, EMBED, READ):
        with served(tmp_path, task, models(task), max_batch_size=8) as server:
            for tensors, said, row in [case[1:] for case in BAD_ROWS if case[0] == task]:
                reply = server.infer(rows(**tensors))
                assert reply.status == 400
                assert reply.error.startswith(said)
                at = "" if row is None else f" (row {row} of the batch)"
                assert ("of the batch" in reply.error) == bool(at)
                assert reply.error.endswith(at)
            if task == CLASSIFY:
                of_all = replace(rows(text_input=["a", "b"]), parameters={"top_k": 0})
                assert "of the batch" not in server.infer(of_all).error


@pytest.mark.parametrize(
    "task, body, typo, meant",
    [
        (EMBED, {"text_input": "the cat", "dimensions": 4}, "dimension", "dimensions"),
        (CLASSIFY, {"text_input": "the cat", "top_k": 2}, "topk", "top_k"),
        (MASK, {"text_input": "a [MASK]", "targets": ["cat", "dog"]}, "top_p", "top_k"),
        (ZERO_SHOT, {"text_input": "a", "candidate_labels": ["b", "c"]}, "multi_labl", "multi_lab"),
        (TAG, {"text_input": "Anna"}, "aggregation_stratgy", "aggregation_strategy"),
        (READ, {"question": "who", "context": "Anna"}, "topk", "top_k"),
    ],
)
def test_flat_json_means_what_tensors_do(
    task: str, body: dict[str, Any], typo: str, meant: str, servers: Servers
) -> None:
    status, answer = servers(task).generate(body)
    assert status == 200, answer
    for name, array in outputs_of(servers(task).infer(request(**body))).items():
        got = np.array(answer[name], ndmin=1)
        assert close(got.astype(object) if array.dtype == object else got, decoded(array)), name
    status, answer = servers(task).generate({**body, typo: 1})
    assert status == 400
    assert f"{typo}: unknown parameter, did you mean {meant}" in answer["error"]


def decoded(array: Any) -> Any:
    if array.dtype != object:
        return array
    return np.array([one.decode() for one in array.flatten()], dtype=object).reshape(array.shape)


@pytest.mark.parametrize(
    "task, changes, options, message",
    [
        (EMBED, {}, {"dimensions": 64}, r"dimensions: got 64, .* have 32"),
        (CLASSIFY, {"sentence_transformers": {"activation_fn": "os.system"}, "num_labels": 1}, {},
         "activation_fn os.system is not a module of torch.nn"),
        (ZERO_SHOT, {"id2label": {0: "relevance"}, "label2id": {"relevance": 0}}, {},
         "natural language inference"),
        (TAG, {}, {"stride": 126}, "options: stride: got 126, allowed: 0 to 125"),
        (TAG, {}, {"ignore_labels": "O,NAME"}, "ignore_labels: got NAME, allowed: B-LOC"),
        (READ, {}, {"max_seq_len": 129}, r"max_seq_len: got 129, .* at most 128"),
    ],
)  # fmt: skip
def test_what_a_model_can_not_do_is_said_when_it_loads(
    task: str, changes: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if "num_labels" in changes:
        changes = {**changes, "id2label": {0: "a"}, "label2id": {"a": 0}}
    model = model_of(task, tmp_path / "model", **changes)
    with (
        pytest.raises(TritonModelException, match=message),
        served(tmp_path, task, model, options=options),
    ):
        pass


def test_a_model_without_a_classifier_is_not_loaded(tmp_path: Path) -> None:
    """Transformers would make one up, and answer at random."""
    model = tiny_encoder("roberta", "AutoModelForMaskedLM", tmp_path / "model")
    with (
        pytest.raises(TritonModelException, match=r"no weights for classifier.* text-classif"),
        served(tmp_path, CLASSIFY, model),
    ):
        pass


def test_a_tokenizer_without_a_mask_token_is_said_when_it_loads(tmp_path: Path) -> None:
    model = model_of(MASK, tmp_path / "model")
    path = model / "tokenizer_config.json"
    config = {k: v for k, v in json.loads(path.read_text()).items() if k != "mask_token"}
    path.write_text(json.dumps(config))
    with (
        pytest.raises(TritonModelException, match="needs a tokenizer with a mask token"),
        served(tmp_path, MASK, model),
    ):
        pass


@pytest.mark.parametrize(
    "options, names",
    [
        (TextClassification(top_k=0), ["top_k"]),
        (TextClassification(top_k=-1), []),
        (FillMask(top_k=9, max_top_k=8), ["top_k"]),
        (ZeroShot(hypothesis_template="It is so."), ["hypothesis_template"]),
        (TokenClassification(stride=9, truncation=True), ["stride"]),
        (TokenClassification(stride=9, aggregation_strategy="none"), ["stride"]),
        (TokenClassification(stride=64, max_length=64), ["stride"]),
        (TokenClassification(stride=9), []),
        (QuestionAnswering(doc_stride=384), ["doc_stride"]),
        (QuestionAnswering(doc_stride=60, max_seq_len=50), ["doc_stride"]),
        (QuestionAnswering(top_k=200), ["top_k"]),
        (QuestionAnswering(max_seq_len=200, max_length=128), ["max_seq_len"]),
    ],
    ids=str,
)
def test_options_that_do_not_go_together_are_mistakes(
    options: EncoderOptions, names: list[str]
) -> None:
    assert [name for name, _ in options.problems()] == names


@pytest.mark.parametrize("task", [CLASSIFY, READ, ZERO_SHOT])
def test_a_token_without_an_embedding_is_the_requests_own_error(task: str, tmp_path: Path) -> None:
    model = model_of(task, tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(["zebra"])
    tokenizer.save_pretrained(model)
    goods: dict[str, dict[str, Any]] = {
        CLASSIFY: {"text_input": "a cat"},
        READ: {"question": "who", "context": "a cat"},
        ZERO_SHOT: {"text_input": "a", "candidate_labels": ["a cat"]},
    }
    good = goods[task]
    field, value = [*good.items()][-1]
    with served(tmp_path, task, model) as server:
        bad = {**good, field: ["zebra"] if isinstance(value, list) else "a zebra"}
        refused(server, "a token that this model has no embedding for", **bad)
        assert server.infer(request(**good)).ok


def test_every_task_is_here() -> None:
    assert MODELS.keys() == REQUESTS.keys() == COLUMNS.keys()
