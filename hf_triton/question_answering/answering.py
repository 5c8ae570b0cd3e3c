"""Question answering as a task of the encoder engine: start and end logits for each token of each
window of a context.

Source of the best spans: transformers 4.57, pipelines/question_answering.py, ``select_starts_ends``
and ``decode_spans`` (5.x has no such pipeline); after Chen et al., "Reading Wikipedia to Answer
Open-Domain Questions", 2017.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hf_triton.encoder.rows import Values, integer_in, option, required_texts, softmax
from hf_triton.encoder.task import EncoderTask, Prepared, TaskSetup
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.encoder.texts.truncation import Tokenized, WindowSplitter
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.json_text import written
from hf_triton.runtime.request.responder import Array, strings
from hf_triton.runtime.request.tensors import boolean
from hf_triton.runtime.tokenizing.lengths import CUT

_CONTEXT = 1  # the second text of a pair
_DEFAULT_WINDOW = 384
_DEFAULT_STRIDE = 128
Answer = dict[str, Any]


class QuestionAnswering(EncoderTask):
    auto_class = "AutoModelForQuestionAnswering"

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        options, tokenizer = setup.options, setup.tokenization.tokenizer
        truncator, longest = setup.tokenization.truncator, setup.tokenization.max_length
        if truncator is None:
            raise LoadError(
                "question-answering needs a fast tokenizer (a tokenizer.json), which tells where "
                "in the context a token stands; this model has none"
            )
        if (options.max_seq_len or 0) > longest:
            raise LoadError(
                f"max_seq_len: got {options.max_seq_len}, this model takes at most {longest} tokens"
            )
        self._cls_token_id = tokenizer.cls_token_id
        self._splitter = WindowSplitter(truncator, options.max_num_windows)
        shortest = int(tokenizer.num_special_tokens_to_add(True)) + 2
        window = options.max_seq_len or min(_DEFAULT_WINDOW, longest)
        self.columns = {  # lengths and the stride in tokens
            "question": partial(required_texts, partners=["context"]),
            "context": partial(required_texts, partners=["question"]),
            "top_k": option(integer_in(1, options.max_top_k), options.top_k),
            "max_answer_len": option(integer_in(1), options.max_answer_len),
            "max_question_len": option(integer_in(1), options.max_question_len),
            "max_seq_len": option(integer_in(shortest, longest), window),
            "doc_stride": option(integer_in(0), options.doc_stride),
            "handle_impossible_answer": option(boolean, options.handle_impossible_answer),
            "align_to_words": option(boolean, options.align_to_words),
            "truncate": option(boolean, setup.tokenization.truncation),
        }

    def row(self, row: Values) -> Prepared:
        length, cuts = row["max_seq_len"], row["truncate"]
        if row["doc_stride"] is None:
            row["doc_stride"] = min(_DEFAULT_STRIDE, length // 2)
        read = partial(self._splitter.pieces, max_length=length, cuts=cuts)
        question, context = (read(name, row[name]) for name in ("question", "context"))
        self._fit_question(row, question, len(context))
        windows = self._splitter.windows(
            "context",
            context,
            max_length=length,
            stride=row["doc_stride"],
            cuts=cuts,
            first=question,
        )
        encodings = [self._encoding(window) for window in windows]
        return Prepared(encodings, partial(self._answer, row, windows))

    def _fit_question(self, row: Values, question: Tokenized, num_context: int) -> None:
        """Cuts or refuses a question that is too long, or leaves a window no room to move on."""
        stride, length = row["doc_stride"], row["max_seq_len"]
        space = self._splitter.truncator.room(length, pair=True)
        most, why = row["max_question_len"], "max_question_len"
        left = space - stride - 1
        if left < 1 and space < len(question) + num_context:
            raise RequestError(
                f"doc_stride: got {stride}, allowed: 0 to {space - 2} with windows of {length} "
                "tokens (max_seq_len)"
            )
        if len(question) + num_context > space and (most is None or most > left):
            most, why = left, f"max_seq_len {length}, doc_stride {stride}"
        if most is None or len(question) <= most:
            return
        if not row["truncate"]:
            got = f"got {len(question)} tokens, allowed: at most {most} ({why})"
            raise RequestError(f"question: {got}; {CUT}")
        question.truncate(most)

    def _encoding(self, window: Tokenized) -> Encoding:
        """Only the context's tokens are wanted, and the first one, which says "no answer"."""
        null = (0,) if self._has_null(window) else ()
        return self.setup.tokenization.as_encoding(window, (*null, *_context(window)))

    def _has_null(self, window: Tokenized) -> bool:
        return self._cls_token_id is not None and window.ids[0] == self._cls_token_id

    def _answer(
        self, row: Values, windows: Sequence[Tokenized], logits: Sequence[Array]
    ) -> Mapping[str, Array]:
        """``logits``: (positions, 2) of each window. A list where more than one may be answered."""
        answers: dict[str, Answer] = {}
        least_null = 1.0
        for window, one in zip(windows, logits, strict=True):
            starts, ends = softmax(one, axis=0).T
            null = 0.0
            if self._has_null(window):
                null, starts, ends = float(starts[0] * ends[0]), starts[1:], ends[1:]
            least_null = min(least_null, null)
            _add_answers(answers, row, window, starts, ends)
        found = list(answers.values())
        if row["handle_impossible_answer"]:
            found.append({"answer": "", "score": least_null, "start": 0, "end": 0})
        best = sorted(found, key=lambda answer: -answer["score"])[: row["top_k"]]
        return {"output": strings([written(best if row["top_k"] > 1 else best[0])])}


def _add_answers(
    answers: dict[str, Answer], row: Values, window: Tokenized, starts: Array, ends: Array
) -> None:
    """Adds a window's best spans to the answers by their text. Scores of equal texts are added up,
    and the first one's position is kept, as in transformers.
    """
    top_k, to_words = row["top_k"], row["align_to_words"]
    # More spans than answers, because several may become the same words.
    num_spans = top_k * 2 + 10 if to_words else top_k
    first = _context(window)[0]
    for start, end, score in best_spans(starts, ends, num_spans, row["max_answer_len"]):
        place = _characters(window, first + start, first + end, to_words=to_words)
        text = row["context"][slice(*place)]
        new = {"answer": text, "score": 0.0, "start": place[0], "end": place[1]}
        answers.setdefault(text.lower(), new)["score"] += score


def _context(window: Tokenized) -> range:
    """The tokens of the context; they are neighbours."""
    own = [i for i, sequence in enumerate(window.sequence_ids) if sequence == _CONTEXT]
    return range(own[0], own[-1] + 1)


def _characters(window: Tokenized, start: int, end: int, *, to_words: bool) -> tuple[int, int]:
    """The characters of the tokens from ``start`` to ``end``, or of their whole words."""
    if to_words:
        words = window.token_to_word(start), window.token_to_word(end)
        places: list[Any] = [window.word_to_chars(w, _CONTEXT) for w in words if w is not None]
        if len(places) == 2:  # not every tokenizer knows words
            return places[0][0], places[1][1]
    return window.offsets[start][0], window.offsets[end][1]


def best_spans(
    starts: Array, ends: Array, num_spans: int, max_answer_len: int
) -> Iterator[tuple[int, int, float]]:
    """The best ``num_spans`` stretches of at most ``max_answer_len`` tokens: first token, last
    token and score, best first. ``starts`` and ``ends`` are probabilities, (tokens,).
    """
    longest = min(max_answer_len, len(starts))
    beyond = np.full(longest - 1, -1.0, dtype=ends.dtype)  # no end there
    window = np.lib.stride_tricks.sliding_window_view(np.append(ends, beyond), longest)
    scores = np.where(window < 0, -1.0, starts[:, None] * window).ravel()  # (tokens * longest,)
    best = np.arange(len(scores))
    if num_spans < len(scores):
        best = np.argpartition(-scores, num_spans)[:num_spans]
    for place in best[np.argsort(-scores[best], kind="stable")]:
        start, length = divmod(int(place), longest)
        if scores[place] >= 0:
            yield start, start + length, float(scores[place])
