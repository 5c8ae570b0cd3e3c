"""Answers as families of models write them: reasoning, calls and text, however the pieces come."""

# ruff: noqa: RUF001, DeepSeek's marks have a bar of their own

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_triton.ports.openai.schema.tools import Tools
from hf_triton.ports.openai.tool_calls.answer_reader import AnswerReader
from hf_triton.text_generation.options import Options
from hf_triton.text_generation.request.chat_formats import (
    REASONING_FORMS,
    TOOL_FORMS,
    ChatFormat,
    format_of,
)

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
LISTED = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
TOOLS = Tools(LISTED, frozenset(["weather", "now"]), None, parallel=True)
CITY = 'Pa} "ris" \\ <tool'
WEATHER = ("weather", {"city": CITY, "days": 3})
NOW: tuple[str, Any] = ("now", {})
ARGUMENTS = json.dumps(WEATHER[1])
AS_JSON = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
AS_NOW = '{"name": "now", "parameters": {}}'
MOST = 1.7976931348623157e308
TEXTS = (
    *("", " \n", "a < b <tool_cal", "<tool_call>", "{curly} words", "[]", "[1] and <tool"),
    *('{"answer": 42}', '{"name": tru', '{"name": "wea', '{"name": "other", "arguments": {}}'),
    *("<tool_call>nonsense</tool_call>", '{"name": "now", "arguments": 3}'),
    *('[{"name": "now"}, 3]', '{"name": ["now"]}', '<tool_call>{"name": {"a": "Ann"}}</tool_call>'),
    *('{"name": "now", "arguments": {"x": NaN}}', "<tool_call>" + "[" * 20_000),
    f'{{"name": "now", "arguments": {{"x": {"1" * 5000}}}}}',
)
PYTHON = f"weather(city={CITY!r}, days=3)"
# (family, what its model writes, the text beside the calls, the calls): what no template renders.
# What templates render is test_tool_calls.py's.
WRITTEN = [
    ("json", f"Well.\n<tool_call>\n{AS_JSON}\n</tool_call>", "Well.\n", [WEATHER]),
    ("json", f"<tool_call>{AS_JSON}\n<tool_call>\n{AS_NOW}", "", [WEATHER, NOW]),
    ("json", f" {AS_JSON}", "", [WEATHER]),
    ("json", '{"name": "now", "arguments": {"x": 1e999}}', "", [("now", {"x": MOST})]),
    *(("json", text, text, []) for text in TEXTS),
    ("phi4_mini", "import functools as f", "import functools as f", []),
    (
        "mistral",
        f"[TOOL_CALLS]weather{ARGUMENTS}[TOOL_CALLS]now[CALL_ID]abc12[ARGS]{{}}",
        "",
        [WEATHER, NOW],
    ),
    ("mistral", "[TOOL_CALLS]other{}", "[TOOL_CALLS]other{}", []),
    (
        "deepseek",
        (
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{ARGUMENTS}"
            "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
            "<｜tool▁calls▁end｜>"
        ),
        "",
        [WEATHER, NOW],
    ),
    ("pythonic", f"<|python_start|>[{PYTHON}]<|python_end|>", "", [WEATHER]),
    ("pythonic", "[one, two(", "[one, two(", []),
    ("pythonic", "[weather(1)] and more", "[weather(1)] and more", []),
    ("pythonic", "[now(x=nothing)]", "[now(x=nothing)]", []),
]


def read(reader: AnswerReader, pieces: list[str]) -> Any:
    """The reasoning, the text, the calls and why it ended."""
    reasoning, text, parts = "", "", []
    for number, piece in enumerate(pieces, start=1):
        thought, said, calls = reader.read(piece, ends=number == len(pieces))
        reasoning, text = reasoning + thought, text + said
        parts += calls
    functions = [call.function for call in parts]
    called = [(one.name, json.loads(one.arguments)) for one in functions]
    return reasoning, text, called, reader.finish_reason("stop")


def pieces_of(written: str, cuts: list[int]) -> list[str]:
    ends = sorted({0, len(written), *(cut % (len(written) + 1) for cut in cuts)})
    return [written[begin:end] for begin, end in pairwise(ends)] or [""]


CUTS = st.lists(st.integers(0, 10**6), max_size=40)


@pytest.mark.parametrize("family, written, text, calls", WRITTEN)
@given(cuts=CUTS)
@settings(max_examples=20, deadline=None)
def test_calls_of_each_family_are_found_however_the_pieces_come(
    family: str, written: str, text: str, calls: Any, cuts: list[int]
) -> None:
    reason = "tool_calls" if calls else "stop"
    for pieces in ([written], [*written[:10], written[10:]], pieces_of(written, cuts)):
        found = read(AnswerReader(TOOLS, ChatFormat(family)), pieces)
        assert found == ("", text, calls, reason)


def test_without_parallel_calls_the_first_is_the_only_one() -> None:
    first = Tools(LISTED, TOOLS.names, None, parallel=False)
    written = f"[{AS_JSON}, {AS_NOW}]"
    assert read(AnswerReader(first, ChatFormat()), [written])[2] == [WEATHER]


def test_arguments_are_json_that_can_be_sent() -> None:
    written = r'{"name": "now", "arguments": {"x": "é\ud800"}}'
    _, _, [call] = AnswerReader(TOOLS, ChatFormat()).read(written, ends=True)
    assert call.function.arguments == r'{"x": "\u00e9\ud800"}'


MARKS = [mark for form in TOOL_FORMS.values() for mark in (*form.begins, *form.ends, *form.inner)]
SCRAPS = st.sampled_from(
    [*MARKS, *REASONING_FORMS["harmony"].dropped,
     "<think>", "</think>", AS_JSON, ARGUMENTS, "weather", "functions.now:3", " \n", '{"a',
     "<function=now>", "[weather(", "now()]", "a", "[", "```json", "[now()]", '{"name": "now"}']
)  # fmt: skip


@given(
    family=st.sampled_from(sorted(TOOL_FORMS)),
    inside=st.booleans(),
    scraps=st.lists(SCRAPS, max_size=12),
    cuts=CUTS,
)
@settings(max_examples=400, deadline=None)
def test_a_stream_says_what_the_whole_says(
    family: str, inside: bool, scraps: list[str], cuts: list[int]
) -> None:
    written = "".join(scraps)
    form = ChatFormat(family, "harmony" if family == "harmony" else "think", inside)
    whole = read(AnswerReader(TOOLS, form), [written])
    assert read(AnswerReader(TOOLS, form), pieces_of(written, cuts)) == whole
    assert read(AnswerReader(TOOLS, form), list(written) or [""]) == whole


HARMONY = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant"


@pytest.mark.parametrize(
    "written, text, calls",
    [
        (f"{HARMONY}<|channel|>final<|message|>Yes <b>.<|return|>", "Yes <b>.", []),
        ("<|channel|>final<|message|>Yes.", "Yes.", []),
        (
            (
                f"{HARMONY}<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
                f"{ARGUMENTS}<|call|>"
            ),
            "",
            [WEATHER],
        ),
        (
            f"{HARMONY} to=functions.weather<|channel|>commentary json<|message|>{ARGUMENTS}",
            "",
            [WEATHER],
        ),
        (
            (
                "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
                "<|channel|>commentary to=functions.now<|message|>{}"
            ),
            "I look.",
            [NOW],
        ),
    ],
)
@given(cuts=CUTS)
@settings(max_examples=40, deadline=None)
def test_the_channels_of_gpt_oss_are_told_apart(
    written: str, text: str, calls: Any, cuts: list[int]
) -> None:
    form = format_of("<|start|>assistant<|channel|>analysis<|message|>")
    assert form == ChatFormat("harmony", "harmony")
    reasoning = "Let me see." if "analysis" in written else ""
    found = read(AnswerReader(TOOLS, form), pieces_of(written, cuts))
    assert found == (reasoning, text, calls, "tool_calls" if calls else "stop")


def test_gpt_oss_may_reason_again() -> None:
    written = f"{HARMONY}<|channel|>analysis<|message|>So.<|end|><|start|>assistant"
    form = ChatFormat("harmony", "harmony")
    for pieces in ([written], list(written)):
        assert read(AnswerReader(None, form), pieces)[:2] == ("Let me see.\nSo.", "")


@pytest.mark.parametrize("name", sorted(REASONING_FORMS))
@given(cuts=CUTS)
@settings(max_examples=30, deadline=None)
def test_reasoning_is_told_apart_from_the_answer(name: str, cuts: list[int]) -> None:
    form = REASONING_FORMS[name]
    tail = "" if form.dropped else f" {form.end} \n"
    rest = f"Let me\n see </ {form.end}\n\n<b>Yes</b>{tail}"
    for inside, begin in ((True, ""), (True, f"\n{form.begin} "), (False, f" {form.begin}\n")):
        reader = AnswerReader(None, ChatFormat("json", name, inside))
        found = read(reader, pieces_of(begin + rest, cuts))
        assert found == ("Let me\n see </", f"<b>Yes</b>{tail}", [], "stop")


@pytest.mark.parametrize(
    "written, inside, expected",
    [
        ("no reasoning", False, ("", "no reasoning")),
        ("  <thi", False, ("", "  <thi")),
        ("cut off </th", True, ("cut off </th", "")),
        ("", True, ("", "")),
        (" <think> </think> ", False, ("", "")),
    ],
)
def test_reasoning_may_be_absent_or_without_an_end(
    written: str, inside: bool, expected: Any
) -> None:
    for pieces in ([written], list(written) or [""]):
        found = read(AnswerReader(None, ChatFormat("json", "think", inside)), pieces)
        assert found[:2] == expected


FORCED = Tools(LISTED, TOOLS.names, "", parallel=True)


@pytest.mark.parametrize("family", ["json", "qwen3_coder", "pythonic"])
@given(cuts=CUTS)
@settings(max_examples=60, deadline=None)
def test_forced_calls_are_json_whatever_the_family(family: str, cuts: list[int]) -> None:
    written = f'[ {AS_JSON},\n  {{"name":"now","arguments" : {{"a": {{"}}": "\\\\"}}}}}} ]'
    expected = [WEATHER, ("now", {"a": {"}": "\\"}})]
    for text in (written, f"I think</think>\n{written}"):
        inside = text != written
        reader = AnswerReader(FORCED, ChatFormat(family, "think" if inside else None, inside))
        thought = "I think" if inside else ""
        assert read(reader, pieces_of(text, cuts)) == (thought, "", expected, "tool_calls")


@pytest.mark.parametrize(
    "written",
    ['[{ "name": "weather", "', f"[{AS_JSON}, ", f'[{AS_JSON}, {{ "name": "wea', AS_JSON[:-1]],
)
@given(cuts=CUTS)
@settings(max_examples=20, deadline=None)
def test_a_forced_call_that_is_cut_off_is_left_out(written: str, cuts: list[int]) -> None:
    for pieces in ([written], pieces_of(written, cuts)):
        reader = AnswerReader(FORCED, ChatFormat())
        assert read(reader, pieces)[:3] == ("", "", [])
        assert reader.finish_reason("length") == "length"


TEMPLATES = {
    "harmony": "<|start|>assistant<|channel|>",
    "kimi_k2": "{% if tools %}<|tool_calls_section_begin|>{% endif %}",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
    "mistral": "[AVAILABLE_TOOLS][TOOL_CALLS]",
    "seed_oss": "<seed:tool_call>\n<function=example>",
    "qwen3_coder": "<tool_call>\n<function=example>",
    "glm45": "<tool_call>{{ name }}<arg_key>",
    "pythonic": "<|python_start|>",
    "json": "<tool_call>",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_templates_own_marks_say_its_family(name: str) -> None:
    assert format_of(TEMPLATES[name]) == ChatFormat(name)
    assert format_of(TEMPLATES[name], "phi4_mini", "granite") == ChatFormat("phi4_mini", "granite")
    assert format_of(TEMPLATES[name] + "</think>").reasoning == "think"
    assert format_of(TEMPLATES[name] + "</think>", "auto", "none").reasoning is None


def test_every_family_can_be_chosen_by_its_key() -> None:
    hints = get_type_hints(Options)
    assert set(get_args(hints["tool_parser"])) == {"auto", *TOOL_FORMS}
    assert set(get_args(hints["reasoning_parser"])) == {"auto", "none", *REASONING_FORMS}


def test_the_prompt_says_where_an_answer_begins() -> None:
    form = ChatFormat("json", "think")
    assert form.after("User: <think> Assistant:") == form
    assert form.after("Assistant: <think>\n") == ChatFormat("json", "think", inside=True)
    assert form.after("Assistant: <think>\n\n</think>\n\n") == ChatFormat("json")
    assert form.after("Assistant: <think>Well", continues=True).inside
    assert form.after("<think></think> Well", continues=True) == ChatFormat("json")
