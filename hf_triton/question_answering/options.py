"""The ``options:`` of a question-answering model."""

from __future__ import annotations

from dataclasses import dataclass

from hf_triton.encoder.options import EncoderOptions
from hf_triton.runtime.option import above_limit, option


@dataclass(frozen=True)
class Options(EncoderOptions):
    """The names and defaults are those of transformers."""

    OUTPUT, TASK = "tokens", "answering:QuestionAnswering"

    max_seq_len: int | None = option(
        None,
        "length of a window: question, special tokens and a part of the context; "
        "default: 384, or max_length where that is less",
        unit="tokens",
        least=4,
    )
    doc_stride: int | None = option(
        None,
        "overlap of neighbouring windows of a longer context; default: 128, or half of "
        "max_seq_len where that is less",
        unit="tokens",
        least=0,
    )
    max_question_len: int | None = option(
        None,
        "longest question; a longer one is refused, or cut by truncate; default: as "
        "long as a window still holds more than doc_stride tokens of the context",
        unit="tokens",
        least=1,
    )
    max_answer_len: int = option(15, "longest answer", unit="tokens", least=1)
    top_k: int = option(
        1, "answers, best first; above 1 the output is a list", unit="answers", least=1
    )
    max_top_k: int = option(100, "highest top_k that a request may set", unit="answers", least=1)
    handle_impossible_answer: bool = option(
        False, "true: an empty text is one of the answers: the context has no answer"
    )
    align_to_words: bool = option(
        True, "true: answers are whole words; false is for languages without spaces"
    )
    max_num_windows: int = option(
        256,
        "most windows of one context; a longer one is refused, or cut by truncate",
        unit="windows",
        least=1,
    )

    def problems(self) -> list[tuple[str, str]]:
        found = super().problems()
        window = self.max_seq_len or 384
        if self.doc_stride is not None and self.doc_stride >= window:
            message = f"got {self.doc_stride}, expected less than max_seq_len ({window})"
            found.append(("doc_stride", message))
        found += above_limit(self, "top_k", "max_top_k")
        lengths = self.max_seq_len, self.max_length
        if None not in lengths and window > (self.max_length or 0):
            message = f"got {window}, expected at most max_length ({self.max_length})"
            found.append(("max_seq_len", message))
        return found
