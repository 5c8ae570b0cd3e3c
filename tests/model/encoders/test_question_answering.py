"""Answers are those of transformers' question-answering pipeline, and mistakes are named.

transformers 5 has no such pipeline any more. What it did is written down here once more, from 4.57,
around the scoring that 5 still has in its pipeline for questions about documents.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stub_server import StubServer
from wire import Reply

from hf_triton.runtime.errors import EngineError
from hf_triton.runtime.request import json_text
from tests.support.other_tokenizers import KINDS, spelt_otherwise
from tests.support.served_encoder import refused, request, served, written
from tests.support.tiny_encoders import texts, tiny_encoder

AUTO_CLASS = "AutoModelForQuestionAnswering"
TASK = "question-answering"
LONG = " ".join(texts(9, longest=70, seed=4))
QUESTIONS = ["who lives in Paris ?", "what"]
CONTEXTS = [
    "Anna lives in Paris, and Peter's cat sat on a mat.",
    "dog",
    LONG,
    "  Ännchen 🐈 naïve\tParis\n\nLondon — ☃ xyz日本語  ",
    *texts(4, longest=100, seed=8),
]


class Reference:
    """transformers 4.57, pipelines/question_answering.py."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()

    def __call__(
        self,
        question: str,
        context: str,
        *,
        top_k: int = 1,
        max_answer_len: int = 15,
        max_seq_len: int = 128,
        doc_stride: int = 64,
        handle_impossible_answer: bool = False,
        align_to_words: bool = True,
    ) -> list[dict[str, Any]]:
        from transformers.pipelines.document_question_answering import select_starts_ends

        windows = self.tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=max_seq_len,
            stride=doc_stride,
            return_overflowing_tokens=True,
        )
        answers: list[dict[str, Any]] = []
        null = 1e6
        num_spans = top_k * 2 + 10 if align_to_words else top_k
        for index, window in enumerate(windows.encodings):
            start, end = self._logits(windows, index)
            p_mask = np.array([sequence != 1 for sequence in window.sequence_ids], dtype=int)
            p_mask[np.array(window.ids) == self.tokenizer.cls_token_id] = 0
            *found, null = select_starts_ends(
                start,
                end,
                p_mask[None],
                np.ones((1, len(window)), dtype=int),
                null,
                num_spans,
                handle_impossible_answer,
                max_answer_len,
            )
            for first, last, score in zip(*found, strict=True):
                # In a short context it takes spans that end before they start, with a score of 0.
                if 0 <= last - first < max_answer_len and window.sequence_ids[first] == 1:
                    self._add(
                        answers, context, self._place(window, first, last, align_to_words), score
                    )
        if handle_impossible_answer:
            answers.append({"answer": "", "score": null, "start": 0, "end": 0})
        return sorted(answers, key=lambda answer: answer["score"], reverse=True)[:top_k]

    def _logits(self, windows: Any, index: int) -> tuple[Any, Any]:
        names = self.tokenizer.model_input_names
        inputs = {name: torch.tensor([windows[name][index]]) for name in names}
        with torch.no_grad():
            output = self.model(**inputs)
        return output.start_logits.numpy(), output.end_logits.numpy()

    def _place(self, window: Any, first: int, last: int, aligned: bool) -> tuple[int, int]:
        try:
            assert aligned
            words = window.token_to_word(first), window.token_to_word(last)
            return window.word_to_chars(words[0], 1)[0], window.word_to_chars(words[1], 1)[1]
        except (AssertionError, TypeError):
            return window.offsets[first][0], window.offsets[last][1]

    def _add(
        self, answers: list[dict[str, Any]], context: str, place: tuple[int, int], score: Any
    ) -> None:
        text = context[slice(*place)]
        for answer in answers:
            if answer["answer"].lower() == text.lower():
                answer["score"] += float(score)
                return
        start, end = place
        answers.append({"answer": text, "score": float(score), "start": start, "end": end})


def answers(reply: Reply) -> list[dict[str, Any]]:
    found = written(reply)
    return found if isinstance(found, list) else [found]


def assert_same(got: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert one.pop("score") == pytest.approx(other["score"], abs=1e-4)
        assert one == {name: other[name] for name in ("answer", "start", "end")}


@pytest.mark.parametrize("kind", ["bert", *KINDS])
def test_questions_in_one_batch_are_answered_as_in_transformers(kind: str, tmp_path: Path) -> None:
    make = spelt_otherwise if kind in KINDS else tiny_encoder
    model = make(kind, AUTO_CLASS, tmp_path / "model")
    asked: list[dict[str, Any]] = [
        {"question": question, "context": context, "top_k": top_k}
        for question in QUESTIONS
        for context in CONTEXTS
        for top_k in (1, 4)
    ]
    with served(tmp_path, TASK, model) as server:
        replies = [p.reply() for p in server.send_together([request(**one) for one in asked])]
    reference = Reference(model)
    for reply, one in zip(replies, asked, strict=True):
        assert_same(answers(reply), reference(**one))


@pytest.mark.parametrize(
    "options",
    [
        {"doc_stride": 0},
        {"doc_stride": 100},
        {"max_seq_len": 40},
        {"max_seq_len": 20, "doc_stride": 9, "top_k": 7},
        {"max_answer_len": 1, "top_k": 3},
        {"max_answer_len": 500},
        {"align_to_words": False, "top_k": 5},
        {"handle_impossible_answer": True, "top_k": 100},
    ],
    ids=str,
)
def test_a_request_sets_what_the_pipeline_lets_it_set(
    options: dict[str, Any], server: StubServer, model: Path
) -> None:
    reference = Reference(model)
    defaults = {"doc_stride": min(64, options.get("max_seq_len", 128) // 2)}
    for context in (LONG, CONTEXTS[0]):
        one = {"question": QUESTIONS[0], "context": context, **options}
        got = answers(server.infer(request(**one)))
        assert_same(got, reference(**{**defaults, **one}))


def test_a_long_question_is_cut_where_the_request_says_so(server: StubServer, model: Path) -> None:
    long = "who lives in Paris ? " * 30
    asked = request(question=long, context=LONG, truncate=True, max_question_len=10)
    got = answers(server.infer(asked))
    assert_same(got, Reference(model)("who lives in Paris ? " * 2, LONG))


def test_more_windows_than_allowed_are_refused_or_cut(model: Path, tmp_path: Path) -> None:
    options = {"max_num_windows": 2, "max_seq_len": 40, "doc_stride": 8}
    with served(tmp_path, TASK, model, options=options) as server:
        refused(server, "context: got ", "windows, allowed: 2", question=QUESTIONS[0], context=LONG)
        asked = request(question=QUESTIONS[0], context=LONG, truncate=True)
        got = answers(server.infer(asked))
    reference = Reference(model)
    room = 40 - 3 - 5
    places = reference.tokenizer(LONG, add_special_tokens=False, return_offsets_mapping=True)[
        "offset_mapping"
    ]
    kept = LONG[: places[room + room - 8 - 1][1]]
    assert_same(got, reference(QUESTIONS[0], kept, max_seq_len=40, doc_stride=8))


def test_a_score_that_is_no_number_is_the_models_fault() -> None:
    with pytest.raises(EngineError, match="not a number"):
        json_text.written({"score": math.nan})
