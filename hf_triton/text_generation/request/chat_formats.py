"""The forms in which model families write tool calls and reasoning, and the detection of a chat
template's family. The engine detects it and reports its names, by which readers of the answer look
up the forms. Standard library only: OpenAI's API imports this file too.
"""

# ruff: noqa: RUF001, DeepSeek's marks have a bar of their own

from __future__ import annotations

import json
from dataclasses import dataclass

_COUNTS = "num_reasoning_tokens"
MAX_HEAD = 300  # characters, more than any ``head`` matches


@dataclass(frozen=True)
class ToolForm:
    """One way to write calls. ``template_marks`` are texts of which a template of it has one.

    Any of ``begins`` come before a call, any of ``ends`` after it. Between them stands JSON with
    name and arguments, or a list of such. With ``head``, a regular expression with a group
    ``name``, its match stands before the arguments: a JSON object, or with ``parameter``, values
    between what that matches, with a group ``key``, and ``parameter_end``, with ``around`` on both
    sides. ``bare`` where an answer may be a call without any of ``begins``; ``is_python`` where
    calls look like Python's. ``inner`` are its other texts that may be special tokens.
    """

    template_marks: tuple[str, ...]
    begins: tuple[str, ...]
    ends: tuple[str, ...] = ()
    head: str = ""
    parameter: str = ""
    parameter_end: str = ""
    around: str = ""
    bare: bool = False
    is_python: bool = False
    inner: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReasoningForm:
    """The marks around a model's reasoning, which comes before its answer. A model with texts to be
    ``dropped`` from the answer may reason again. A ``header`` stands between the two.
    """

    begin: str
    end: str
    dropped: tuple[str, ...] = ()
    header: str = ""


_FUNCTION = r"(?<=<function=)(?P<name>[^<>\n]{1,128})>"
_PARAMETER = r"<parameter=(?P<key>[^<>\n]+)>"
JSON = "json"  # the form of templates without marks of the others
TOOL_FORMS = {
    "kimi_k2": ToolForm(
        ("<|tool_calls_section_begin|>",),
        ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        ("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        r"(?:functions\.)?(?P<name>[^\s<:]{1,128})(?::\d{1,9})?\s{0,8}"
        r"<\|tool_call_argument_begin\|>\s{0,8}(?=\{)",
        inner=("<|tool_call_argument_begin|>",),
    ),
    "deepseek": ToolForm(  # V3 has the type function before the name, and a block of json
        ("<｜tool▁calls▁begin｜>",),
        ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        ("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        r"(?:function<｜tool▁sep｜>)?(?P<name>[^\s<]{1,128})(?:<｜tool▁sep｜>|\s{0,8}```json)"
        r"\s{0,8}(?=\{)",
        inner=("<｜tool▁sep｜>",),
    ),
    "mistral": ToolForm(  # the older ones have a list of JSON
        ("[TOOL_CALLS]",),
        ("[TOOL_CALLS]",),
        head=r"(?P<name>[^\s\[{<]{1,128})(?:\[CALL_ID\]\w{1,64})?(?:\[ARGS\])?\s{0,8}(?=\{)",
        bare=True,
        inner=("[CALL_ID]", "[ARGS]"),
    ),
    "seed_oss": ToolForm(
        ("<seed:tool_call>",),
        ("<seed:tool_call>", "<function="),
        ("</function>", "</seed:tool_call>"),
        _FUNCTION,
        _PARAMETER,
        "</parameter>",
    ),
    "qwen3_coder": ToolForm(  # which leaves the first mark out at times
        ("<function=",),
        ("<tool_call>", "<function="),
        ("</function>", "</tool_call>"),
        _FUNCTION,
        _PARAMETER,
        "</parameter>",
        around="\n",
    ),
    "glm45": ToolForm(
        ("<arg_key>",),
        ("<tool_call>",),
        ("</tool_call>",),
        r"(?P<name>[^\s<{]{1,128})(?=\s{0,8}(?:<arg_key>|</tool_call>))",
        r"<arg_key>(?P<key>[^<>\n]+)</arg_key>\s*<arg_value>",
        "</arg_value>",
        inner=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "pythonic": ToolForm(
        ("<|python_start|>", "[func_name1("),
        ("<|python_start|>",),
        ("<|python_end|>",),
        bare=True,
        is_python=True,
    ),
    "harmony": ToolForm(  # gpt-oss; the recipient stands in the role or in the channel
        ("<|channel|>",),
        ("<|channel|>commentary", "to=functions."),
        ("<|call|>",),
        r"(?P<name>[\w.-]{1,128})(?:\s?<\|channel\|>commentary)?\s?(?:<\|constrain\|>)?(?:json)?"
        r"<\|message\|>\s{0,8}(?=\{)",
        inner=("<|constrain|>", "<|message|>"),
    ),
    "phi4_mini": ToolForm(
        (), ("functools", "<|tool_call|>", "<tool_call>"), ("<|/tool_call|>", "</tool_call>")
    ),
    JSON: ToolForm(  # Hermes, Qwen, Llama 3, Granite
        (),
        ("<tool_call>", "<|tool_call|>", "<|python_tag|>", "[TOOL_CALLS]"),
        ("</tool_call>",),
        bare=True,
    ),
}
REASONING_FORMS = {
    "think": ReasoningForm("<think>", "</think>"),
    "mistral": ReasoningForm("[THINK]", "[/THINK]"),
    "seed": ReasoningForm("<seed:think>", "</seed:think>"),
    "cohere": ReasoningForm("<|START_THINKING|>", "<|END_THINKING|>"),
    "harmony": ReasoningForm(
        "<|channel|>analysis<|message|>",
        "<|end|>",
        (
            "<|start|>assistant",
            "<|channel|>final<|message|>",
            "<|channel|>commentary<|message|>",
            "<|end|>",
            "<|return|>",
        ),
        "<|start|>assistant<|channel|>final<|message|>",
    ),
    "granite": ReasoningForm("Here is my thought process:", "Here is my response:"),
}


@dataclass(frozen=True)
class ChatFormat:
    """The names of the forms of an answer to a chat; ``reasoning`` is None where the model writes
    none. ``inside``: the prompt has begun the reasoning.
    """

    tools: str = JSON
    reasoning: str | None = None
    inside: bool = False

    @property
    def tool_form(self) -> ToolForm:
        return TOOL_FORMS[self.tools]

    @property
    def reasoning_form(self) -> ReasoningForm | None:
        return REASONING_FORMS[self.reasoning] if self.reasoning else None

    def marks(self, *, tools: bool) -> tuple[str, ...]:
        """The texts needed to read an answer, though they may be special tokens."""
        reasoning, calls = self.reasoning_form, self.tool_form
        found = (reasoning.begin, reasoning.end, *reasoning.dropped) if reasoning else ()
        return (*found, *calls.begins, *calls.ends, *calls.inner) if tools else found

    def after(self, prompt: str, *, continues: bool = False) -> ChatFormat:
        """The format of the answer to a rendered prompt, which may have begun the reasoning, or
        ended it; ``continues`` where the prompt ends within an answer.
        """
        form = self.reasoning_form
        if form is None:
            return self
        text = prompt.rstrip()
        if continues:
            inside = text.rfind(form.begin) > text.rfind(form.end)
        else:
            inside = text.endswith(form.begin)
        is_over = not inside and (continues or text.endswith(form.end))
        return ChatFormat(self.tools, None if is_over else self.reasoning, inside)

    def to_json(self) -> str:
        return json.dumps(vars(self))


def format_of(template: str, tools: str = "auto", reasoning: str = "auto") -> ChatFormat:
    """Names other than ``auto`` are taken as they are, ``none`` for no reasoning."""
    if tools == "auto":
        marks_of = {name: form.template_marks for name, form in TOOL_FORMS.items()}
        found = (name for name, marks in marks_of.items() if any(m in template for m in marks))
        tools = next(found, JSON)
    if reasoning == "auto":
        ends = ((n, f.begin if f.dropped else f.end) for n, f in REASONING_FORMS.items())
        reasoning = next((name for name, mark in ends if mark in template), "none")
    return ChatFormat(tools, None if reasoning == "none" else reasoning)


def read_format(text: str) -> ChatFormat:
    told = json.loads(text) if text else {}
    return ChatFormat(**{name: told[name] for name in vars(ChatFormat()) if name in told})


def with_counts(text: str, counts: list[int]) -> str:
    """``to_json``'s text with each choice's number of reasoning tokens so far."""
    return json.dumps({**json.loads(text), _COUNTS: counts})


def read_counts(text: str) -> list[int]:
    found: list[int] = json.loads(text).get(_COUNTS, []) if _COUNTS in text else []
    return found
