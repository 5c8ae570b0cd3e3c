"""The ``options:`` of a question-answering model.

Standard library only: the generator loads this file to check models.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hf_encoder.options import EncoderOptions

# Read by generator/spec/task_folders.py.
PACKAGES = ("hf_encoder",)
DETERMINISTIC = True
QUANTIZES = True
OUTPUT = "tokens"


@dataclass(frozen=True)
class Options(EncoderOptions):
    """How one extractive reader is run; a request's own word wins over each of those that it may
    send. The names and defaults are transformers'.
    """

    max_seq_len: int | None = field(
        default=None,
        metadata={
            "help": "length of a window: question, special tokens and a part of the context; "
            "default: 384, or max_length where that is less",
            "unit": "tokens",
            "min": 4,
        },
    )
    doc_stride: int | None = field(
        default=None,
        metadata={
            "help": "overlap of neighbouring windows of a longer context; default: 128, or half of "
            "max_seq_len where that is less",
            "unit": "tokens",
            "min": 0,
        },
    )
    max_question_len: int | None = field(
        default=None,
        metadata={
            "help": "longest question; a longer one is refused, or cut by truncate; default: as "
            "long as a window still holds more than doc_stride tokens of the context",
            "unit": "tokens",
            "min": 1,
        },
    )
    max_answer_len: int = field(
        default=15,
        metadata={"help": "longest answer", "unit": "tokens", "min": 1},
    )
    top_k: int = field(
        default=1,
        metadata={
            "help": "answers, best first; above 1 the output is a list",
            "unit": "answers",
            "min": 1,
        },
    )
    max_top_k: int = field(
        default=100,
        metadata={
            "help": "highest top_k that a request may set",
            "unit": "answers",
            "min": 1,
        },
    )
    handle_impossible_answer: bool = field(
        default=False,
        metadata={"help": "true: an empty text is one of the answers: the context has no answer"},
    )
    align_to_words: bool = field(
        default=True,
        metadata={"help": "true: answers are whole words; false is for languages without spaces"},
    )
    max_num_windows: int = field(
        default=256,
        metadata={
            "help": "most windows of one context; a longer one is refused, or cut by truncate",
            "unit": "windows",
            "min": 1,
        },
    )

    def problems(self) -> list[tuple[str, str]]:
        """Mistakes that only show in two fields together, each as (field, message)."""
        found = super().problems()
        window = self.max_seq_len or 384
        if self.doc_stride is not None and self.doc_stride >= window:
            message = f"got {self.doc_stride}, expected less than max_seq_len ({window})"
            found.append(("doc_stride", message))
        if self.top_k > self.max_top_k:
            message = f"got {self.top_k}, expected at most max_top_k ({self.max_top_k})"
            found.append(("top_k", message))
        lengths = self.max_seq_len, self.max_length
        if None not in lengths and window > (self.max_length or 0):
            message = f"got {window}, expected at most max_length ({self.max_length})"
            found.append(("max_seq_len", message))
        return found
