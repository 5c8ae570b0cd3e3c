"""Renders chats to prompts, by the model's own chat template, and says how answers are to be read.

A chat is checked before, because a template silently ignores what it does not use; a template's
failure becomes the caller's error, without quoting the chat.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hf_triton.runtime import log
from hf_triton.runtime.errors import RequestError, reason
from hf_triton.runtime.request.json_text import read_object, short
from hf_triton.runtime.request.tensors import kind_of
from hf_triton.runtime.tokenizing.lengths import check_messages

from ..structured.constraint import Constraint, Reasoning
from ..structured.json_schemas import values_in
from . import as_taken
from .chat_formats import JSON, ChatFormat, format_of

_ITSELF = {"messages", "tools"}
_LONGEST_ROLE = 40  # characters
_PROBE = "Anna"
_USER = {"role": "user", "content": ""}
# Switches of templates that turn reasoning on or off, without a degree.
_SWITCHES = ("enable_thinking", "thinking")
# Ends the name of an option that is left out where a template does not take it.
_WISHED = "?"
_QUOTED = 8  # characters; the shortest text whose appearance in an error counts as a quotation


class ChatTemplate:
    """The chat template of one tokenizer, if it has one; ``format`` is how its model answers, and
    ``added_tokens`` are ids by the texts of added tokens.
    """

    def __init__(
        self, tokenizer: Any, tool_parser: str = "auto", reasoning_parser: str = "auto"
    ) -> None:
        """Warns of a template that does not compile, which then refuses every chat."""
        self._tokenizer = tokenizer
        self._problem: str | None = None
        self.format = ChatFormat()
        self.added_tokens: dict[str, int] = {}
        if not getattr(tokenizer, "chat_template", None):
            self._problem = "this model has no chat template; send text_input"
            return
        try:
            self._variables(None)
            self._template = str(tokenizer.get_chat_template(None, [{}]))
            if "tools" not in self._variables([{}]) and tool_parser == "auto":
                tool_parser = JSON  # the form of as_taken.py
            self.format = format_of(self._template, tool_parser, reasoning_parser)
            self.added_tokens = tokenizer.get_added_vocab()
        except Exception as error:
            self._problem = f"this model's chat template can't be used ({type(error).__name__})"
            log.warn(f"{self._problem}: {reason(error)}")

    def render(self, messages: list[Any], tools: list[Any] | None, kwargs: dict[str, Any]) -> str:
        """The prompt of a chat, special tokens included. Raises RequestError.

        ``kwargs`` are what the template itself takes, ``add_generation_prompt`` (default true),
        ``continue_final_message`` and ``reasoning_effort``. An option whose name ends with "?" is
        dropped where the template does not take it.
        """
        held = {name: value for name, value in kwargs.items() if not name.endswith(_WISHED)}
        if len(held) < len(kwargs):
            wished = {name.removesuffix(_WISHED): value for name, value in kwargs.items()}
            with contextlib.suppress(RequestError):
                return self._render(messages, tools, {**wished, **held})
        return self._render(messages, tools, held)

    def _render(self, messages: list[Any], tools: list[Any] | None, kwargs: dict[str, Any]) -> str:
        if self._problem is not None:
            raise RequestError(f"messages: {self._problem}")
        if not messages:
            raise RequestError("messages: got an empty list, allowed: one message or more")
        found = [_checked_message(f"messages[{n}]", message) for n, message in enumerate(messages)]
        check_messages("messages", found)
        chat = self._as_taken(self._with_contents(found))
        for number, tool in enumerate(tools or ()):
            if not isinstance(tool, dict):
                raise RequestError(f"tools[{number}]: got {kind_of(tool)}, allowed: an object")
        tools = tools or None
        variables = self._variables(tools)
        if tools and "tools" not in variables:
            told = as_taken.with_tools(chat, tools, takes_system=self._takes_system)
            chat, tools = self._with_contents(told), None
        kwargs = self._with_switch(kwargs, variables)
        self._check_taken(kwargs, variables)
        prompt = {"add_generation_prompt": not kwargs.get("continue_final_message"), **kwargs}
        try:
            rendered = self._tokenizer.apply_chat_template(
                chat, tools=tools, tokenize=False, **prompt
            )
        except Exception as error:
            raise RequestError(_describe_failure(error, chat, kwargs)) from None
        return str(rendered)

    def content(self, where: str, role: str, content: str | list[Any]) -> str | list[Any]:
        """A message's content as the template takes it: text parts are joined line by line."""
        if isinstance(content, str):
            return content
        if role == "tool":
            content = [_without_file(part) for part in content]
        return "\n".join(text_part(f"{where}[{n}]", part) for n, part in enumerate(content))

    def _as_taken(self, chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Calls and later system messages as the template takes them."""
        in_words = "tool" not in self._template
        if any(message.get("tool_calls") for message in chat):
            objects, texts = (True, True) if in_words else self._arguments_taken
            chat = [as_taken.with_arguments(one, objects=objects, texts=texts) for one in chat]
        if in_words:
            chat = self._with_contents(as_taken.with_calls_as_texts(chat))
        is_later = any(message["role"] in as_taken.SYSTEM for message in chat[1:])
        if is_later and not self._takes_later_system:
            chat = self._with_contents(as_taken.with_one_system(chat))
        return chat

    def _with_contents(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for number, message in enumerate(messages):
            if (content := message.get("content")) is not None:
                content = self.content(f"messages[{number}].content", message["role"], content)
                message = {**message, "content": content}
            found.append(message)
        return found

    @cached_property
    def _takes_system(self) -> bool:
        return _PROBE in self._rendered("system", self.content("", "system", _PROBE))

    @cached_property
    def _takes_later_system(self) -> bool:
        """True if the template shows a system message that is not the first message."""
        told = {"role": "system", "content": self.content("", "system", _PROBE)}
        return _PROBE in self._shown(_USER, told) and _PROBE in self._shown(_USER, told, _USER)

    @cached_property
    def _arguments_taken(self) -> tuple[bool, bool]:
        """Two flags: the template shows calls whose arguments are objects, and whose are texts."""
        objects, texts = (
            any(_PROBE in self._shown(_USER, _calling(content, given)) for content in ("", None))
            for given in ({_PROBE: _PROBE}, _PROBE)
        )
        return objects or not texts, texts

    def _rendered(self, role: str, content: Any) -> str:
        """A short chat with such a message; empty where the template fails at it."""
        message = {"role": role, "content": content}
        if role == "user":
            return self._shown(message)
        return self._shown(*((message, _USER) if role == "system" else (_USER, message)))

    def _shown(self, *chat: dict[str, Any]) -> str:
        """A short chat as it is rendered; empty where the template fails at it."""
        if self._problem is not None:
            return ""
        try:
            return str(self._tokenizer.apply_chat_template(list(chat), tokenize=False))
        except Exception:
            return ""

    def _with_switch(self, kwargs: dict[str, Any], variables: frozenset[str]) -> dict[str, Any]:
        """``reasoning_effort`` as a switch, for a template that only turns reasoning on and off;
        "none" changes nothing where the model does not reason.
        """
        if "reasoning_effort" not in kwargs or "reasoning_effort" in variables:
            return kwargs
        others = {name: value for name, value in kwargs.items() if name != "reasoning_effort"}
        is_none = kwargs["reasoning_effort"] == "none"
        switch = next((name for name in _SWITCHES if name in variables), None)
        if switch is not None:
            return {switch: not is_none, **others}
        return others if is_none and self.format.reasoning is None else kwargs

    def _variables(self, tools: list[Any] | None) -> frozenset[str]:
        from transformers.utils.chat_template_utils import _get_template_variables

        template = self._tokenizer.get_chat_template(None, tools)
        found: frozenset[str] = _get_template_variables(template)
        return found

    def _check_taken(self, kwargs: dict[str, Any], variables: frozenset[str]) -> None:
        own = variables - _ITSELF - set(self._tokenizer.special_tokens_map)
        taken = own | {"add_generation_prompt", "continue_final_message"}
        for name in kwargs:
            if name not in taken:
                allowed = ", ".join(sorted(taken))
                raise RequestError(
                    f"chat_template_kwargs: {short(name)}: this model's chat template does not "
                    f"take it; allowed: {allowed}"
                )
        for name in ("add_generation_prompt", "continue_final_message"):
            if not isinstance(kwargs.get(name, True), bool):
                got = kind_of(kwargs[name])
                raise RequestError(
                    f"chat_template_kwargs: {name}: got {got}, allowed: true or false"
                )
        prompts = kwargs.get("add_generation_prompt", True)
        if not prompts and "add_generation_prompt" not in variables:
            raise RequestError(
                "chat_template_kwargs: add_generation_prompt: got false, this model's chat "
                "template decides by itself; allowed: true"
            )
        if kwargs.get("continue_final_message") and kwargs.get("add_generation_prompt"):
            raise RequestError(
                "chat_template_kwargs: continue_final_message and add_generation_prompt: got true "
                "for both, allowed: one of them"
            )

    def format_after(self, row: Mapping[str, Any], prompt: str) -> ChatFormat | None:
        """The format of the answer to a row's chat; None where its caller does not ask."""
        if not row["return_chat_format"] or not row.get("messages"):
            return None
        kwargs = read_object("chat_template_kwargs", row["chat_template_kwargs"] or "{}")
        return self.format.after(prompt, continues=bool(kwargs.get("continue_final_message")))

    def kept_token_ids(self, chat_format: ChatFormat, *, tools: bool) -> frozenset[int]:
        """The special tokens of the marks of calls and reasoning."""
        return frozenset(self._tokens_of(chat_format.marks(tools=tools)).values())

    def reasoning_tokens(self, chat_format: ChatFormat) -> ReasoningTokens | None:
        """A counter for reasoning whose two marks are a token each; None of others."""
        form = chat_format.reasoning_form
        if form is None or not {form.begin, form.end} <= set(self.added_tokens):
            return None
        begin, end = (self.added_tokens[mark] for mark in (form.begin, form.end))
        return ReasoningTokens(begin, end, chat_format.inside)

    def after_reasoning(
        self, constraint: Constraint | None, chat_format: ChatFormat
    ) -> Constraint | None:
        form = chat_format.reasoning_form
        if constraint is None or form is None:
            return constraint
        marks = (form.begin, form.end + form.header)
        tokens = tuple(self._tokens_of(marks).items())
        return replace(constraint, reasoning=Reasoning(*marks, chat_format.inside, tokens))

    def _tokens_of(self, marks: tuple[str, ...]) -> dict[str, int]:
        added = self.added_tokens.items()
        return {text: i for text, i in added if any(text in mark for mark in marks)}


def _checked_message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RequestError(f"{where}: got {kind_of(message)}, allowed: an object")
    role = message.get("role")
    if not isinstance(role, str) or not 0 < len(role) <= _LONGEST_ROLE:
        got = "none" if "role" not in message else kind_of(role)
        raise RequestError(f"{where}.role: got {got}, allowed: a text, such as user")
    calls, content = message.get("tool_calls"), message.get("content")
    if calls is not None and not isinstance(calls, list):
        raise RequestError(f"{where}.tool_calls: got {kind_of(calls)}, allowed: a list")
    if "content" not in message and "tool_calls" not in message:
        raise RequestError(f"{where}.content: missing, a text is required")
    if content is not None and not isinstance(content, str | list):
        got = kind_of(content)
        raise RequestError(f"{where}.content: got {got}, allowed: a text or a list of text parts")
    return message


def _calling(content: str | None, arguments: Any) -> dict[str, Any]:
    # Some templates take only ids of nine letters.
    call = {"id": "abcdefghi", "function": {"name": "now", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [{"type": "function", **call}]}


def _without_file(part: Any) -> Any:
    """A part of a tool's output; a file becomes a text that says it is left out."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("image", "audio"):
        return {"type": "text", "text": f"[{kind} left out: this model reads texts alone]"}
    return part


def text_part(where: str, part: Any) -> str:
    """Raises RequestError for a part that is no text."""
    if not isinstance(part, dict):
        raise RequestError(f"{where}: got {kind_of(part)}, allowed: an object")
    text = part.get("text")
    if part.get("type") != "text" or not isinstance(text, str):
        raise RequestError(f'{where}: allowed: {{"type": "text", "text": ...}}, a text only')
    return text


def _describe_failure(error: Exception, chat: list[dict[str, Any]], kwargs: dict[str, Any]) -> str:
    """The template's own text from ``raise_exception``, or the type of any other error."""
    text = reason(error)
    if type(error).__name__ == "TemplateError" and not any(part in text for part in _texts(chat)):
        return f"messages: the chat template refuses them: {text}"
    if kwargs.get("continue_final_message"):
        return "chat_template_kwargs: continue_final_message: the last message can't be continued"
    return f"messages: the chat template can't render them ({type(error).__name__})"


def _texts(chat: list[dict[str, Any]]) -> Iterator[str]:
    """The texts of a chat that an error could quote; roles are not among them."""
    for value in values_in([{**message, "role": None} for message in chat]):
        if isinstance(value, str) and len(value) >= _QUOTED:
            yield " ".join(value.split())


@dataclass
class ReasoningTokens:
    """Counts the tokens of the first reasoning, after ``begin`` and before ``end``, as vLLM."""

    begin: int
    end: int
    inside: bool
    num: int = 0
    is_over: bool = False

    def take(self, token_id: int) -> None:
        self.is_over |= self.inside and token_id == self.end
        if not self.is_over and token_id != self.begin:
            self.num += self.inside
        self.inside |= token_id == self.begin
