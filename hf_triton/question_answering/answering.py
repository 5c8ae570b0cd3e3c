"""Question answering as a task of the encoder engine: start and end logits for each token of each
window.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from hf_triton.encoder.answers.rows import JsonRow, json_request
from hf_triton.encoder.task import Array, EncoderTask, Prepared, TaskSetup
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.encoder.texts.truncation import Tokenized
from hf_triton.encoder.texts.windows import WindowSplitter
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.tensors import RequestFields, each_row

from .request import Question, QuestionReader
from .spans import Scores, Span, best_spans

_CONTEXT = 1  # the second text of a pair
Answer = dict[str, Any]


class QuestionAnswering(EncoderTask):
    """Answers questions by spans of their contexts."""

    auto_class = "AutoModelForQuestionAnswering"
    output = "tokens"

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        tokenizer = setup.tokenization.tokenizer
        if not tokenizer.is_fast:
            raise LoadError(
                "question-answering needs a fast tokenizer (a tokenizer.json), which tells where "
                "in the context a token stands; this model has none"
            )
        self._cls_token_id = tokenizer.cls_token_id
        self._reader = QuestionReader(setup.options, setup.tokenization)
        self._splitter = WindowSplitter(
            setup.tokenization, max_num_windows=setup.options.max_num_windows
        )

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        """Reads questions and contexts: one encoding for each window of each context."""
        rows = each_row(self._row, self._reader.read(fields))
        return json_request(rows, batched=self.setup.batched)

    def _row(self, row: Question) -> JsonRow:
        windows = self._windows(row)
        encodings = [self._encoding(window) for window in windows]
        return JsonRow(encodings, partial(self._answer, row, windows))

    def _windows(self, row: Question) -> list[Tokenized]:
        read = partial(self._splitter.pieces, max_length=row.max_seq_len, cuts=row.truncate)
        question, context = read("question", row.question), read("context", row.context)
        self._fit(row, question, len(context))
        return self._splitter.cut(
            "context",
            context,
            max_length=row.max_seq_len,
            stride=row.doc_stride,
            cuts=row.truncate,
            before=question,
        )

    def _fit(self, row: Question, question: Tokenized, num_context: int) -> None:
        """Cuts or refuses a question that is too long, or leaves a window no room to move on."""
        space = self._splitter.room(row.max_seq_len, pair=True)
        most, why = row.max_question_len, "max_question_len"
        left = space - row.doc_stride - 1
        if left < 1 and space < len(question) + num_context:
            raise RequestError(
                f"doc_stride: got {row.doc_stride}, allowed: 0 to {space - 2} with windows of "
                f"{row.max_seq_len} tokens (max_seq_len)"
            )
        if len(question) + num_context > space and (most is None or most > left):
            most, why = left, f"max_seq_len {row.max_seq_len}, doc_stride {row.doc_stride}"
        if most is None or len(question) <= most:
            return
        if not row.truncate:
            raise RequestError(
                f"question: got {len(question)} tokens, allowed: at most {most} ({why}); send "
                "truncate: true to cut it"
            )
        question.truncate(most)

    def _encoding(self, window: Tokenized) -> Encoding:
        """Only the context's tokens are wanted, and the first one, which says "no answer"."""
        null = (0,) if self._has_null(window) else ()
        return self.setup.tokenization.as_encoding(window, (*null, *_context(window)))

    def _has_null(self, window: Tokenized) -> bool:
        return self._cls_token_id is not None and window.ids[0] == self._cls_token_id

    def _answer(
        self, row: Question, windows: Sequence[Tokenized], logits: Sequence[Array]
    ) -> Answer | list[Answer]:
        """``logits``: (positions, 2) of each window. A list where more than one may be answered."""
        answers: dict[str, Answer] = {}
        null = 1.0
        for window, one in zip(windows, logits, strict=True):
            scores = Scores.of(one, has_null=self._has_null(window))
            null = min(null, scores.null)
            _add_answers(answers, row, window, scores)
        found = list(answers.values())
        if row.handle_impossible_answer:
            found.append({"answer": "", "score": null, "start": 0, "end": 0})
        best = sorted(found, key=lambda answer: -answer["score"])[: row.top_k]
        return best if row.top_k > 1 else best[0]


def _add_answers(
    answers: dict[str, Answer], row: Question, window: Tokenized, scores: Scores
) -> None:
    """Adds a window's best spans to the answers by their text. Scores of equal texts are added up,
    and the first one's position is kept, as in transformers.
    """
    # More spans than answers, because several may become the same words.
    num_spans = row.top_k * 2 + 10 if row.align_to_words else row.top_k
    first = _context(window)[0]
    for span in best_spans(scores, num_spans, row.max_answer_len):
        start, end = _place(window, first, span, align_to_words=row.align_to_words)
        text = row.context[start:end]
        known = answers.get(text.lower())
        if known is None:
            answers[text.lower()] = {
                "answer": text,
                "score": span.score,
                "start": start,
                "end": end,
            }
        else:
            known["score"] += span.score


def _context(window: Tokenized) -> range:
    """The tokens of the context; they are neighbours."""
    own = [i for i, sequence in enumerate(window.sequence_ids) if sequence == _CONTEXT]
    return range(own[0], own[-1] + 1)


def _place(window: Tokenized, first: int, span: Span, *, align_to_words: bool) -> tuple[int, int]:
    """The character range of a span of the context."""
    start, end = first + span.start, first + span.end
    if align_to_words:
        words = _word(window, start), _word(window, end)
        if words[0] is not None and words[1] is not None:
            return words[0][0], words[1][1]
    # Not every tokenizer knows words.
    return window.offsets[start][0], window.offsets[end][1]


def _word(window: Tokenized, token: int) -> tuple[int, int] | None:
    """The character range of a token's word."""
    word = window.token_to_word(token)
    return None if word is None else window.word_to_chars(word, _CONTEXT)
