"""How the answers to a model's chats are read, by callers that ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hf_triton.runtime.request.chat_formats import ChatFormat
from hf_triton.runtime.request.json_text import read_object

from ..structured.constraint import Constraint, Reasoning


@dataclass
class ReasoningTokens:
    """Counts the tokens between those that ``begin`` and ``end`` a reasoning, as vLLM does;
    ``inside`` while it goes on, which it does once.
    """

    begin: int
    end: int
    inside: bool
    num: int = 0
    is_over: bool = False

    def take(self, token_id: int) -> None:
        """The next token of an output."""
        self.is_over |= self.inside and token_id == self.end
        if not self.is_over and token_id != self.begin:
            self.num += self.inside
        self.inside |= token_id == self.begin


@dataclass(frozen=True)
class ChatAnswers:
    """``chat_format`` is that of the model's template; ``added_tokens`` are the ids of tokens that
    have a text of their own.
    """

    chat_format: ChatFormat = field(default_factory=ChatFormat)
    added_tokens: Mapping[str, int] = field(default_factory=dict)

    def format_after(self, row: Mapping[str, Any], prompt: str) -> ChatFormat | None:
        """How the answer to a row's chat is to be read; None where its caller does not ask."""
        if not row["return_chat_format"] or not row.get("messages"):
            return None
        kwargs = read_object("chat_template_kwargs", row["chat_template_kwargs"] or "{}")
        return self.chat_format.after(prompt, continues=bool(kwargs.get("continue_final_message")))

    def kept_token_ids(self, chat_format: ChatFormat, *, tools: bool) -> frozenset[int]:
        """The tokens of the texts by which calls and reasoning are found."""
        return frozenset(self._tokens_of(chat_format.marks(tools=tools)).values())

    def reasoning_tokens(self, chat_format: ChatFormat) -> ReasoningTokens | None:
        """What counts the tokens of a reasoning whose two marks are a token each; None of others,
        whose last tokens may hold both a mark and text.
        """
        form = chat_format.reasoning_form
        if form is None or not {form.begin, form.end} <= set(self.added_tokens):
            return None
        begin, end = (self.added_tokens[mark] for mark in (form.begin, form.end))
        return ReasoningTokens(begin, end, chat_format.inside)

    def after_reasoning(
        self, constraint: Constraint | None, chat_format: ChatFormat
    ) -> Constraint | None:
        """The constraint on what the model writes once it has reasoned."""
        form = chat_format.reasoning_form
        if constraint is None or form is None:
            return constraint
        marks = (form.begin, form.end + form.header)
        tokens = tuple(self._tokens_of(marks).items())
        return replace(constraint, reasoning=Reasoning(*marks, chat_format.inside, tokens))

    def _tokens_of(self, marks: tuple[str, ...]) -> dict[str, int]:
        added = self.added_tokens.items()
        return {text: i for text, i in added if any(text in mark for mark in marks)}
