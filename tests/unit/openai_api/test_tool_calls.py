"""A template's text for calls is read back as these calls, whatever texts they hold."""

# ruff: noqa: E501, RUF001, rows of tables; DeepSeek's marks have a bar of their own

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_triton.ports.openai.schema.tools import Tools
from hf_triton.ports.openai.tool_calls.answer_reader import AnswerReader
from hf_triton.ports.openai.tool_calls.parameter_calls import typed, types_of
from hf_triton.text_generation.request.chat_formats import TOOL_FORMS, ChatFormat
from tests.unit.openai_api.test_reading import CUTS, pieces_of, read

Call = tuple[str, dict[str, Any]]
TEXT = {"type": "string"}
WRITE = {
    "type": "object",
    "$defs": {"box": {"properties": {"in": TEXT}, "type": "object"}},
    "properties": {
        "text": TEXT,
        "days": {"type": "integer"},
        "flag": {"type": "boolean"},
        "maybe": {"anyOf": [TEXT, {"type": "null"}]},
        "list": {"type": "array"},
        "box": {"$ref": "#/$defs/box"},
        "from": TEXT,
    },
    "required": ["text"],
}
LISTED = [
    {"type": "function", "function": {"name": "write-it", "parameters": WRITE}},
    {"type": "function", "function": {"name": "now"}},
]
TOOLS = Tools(LISTED, frozenset(["write-it", "now"]), None, parallel=True)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _named(call: Call) -> str:
    return _json({"name": call[0], "arguments": call[1]})


def _python(calls: list[Call], write: Callable[[Any], str]) -> str:
    listed = [
        f"{name}({', '.join(f'{key}={write(value)}' for key, value in arguments.items())})"
        for name, arguments in calls
    ]
    return f"[{', '.join(listed)}]"


def _each(form: str, between: str = "\n", begin: str = "", end: str = "") -> Any:
    def render(calls: list[Call]) -> str:
        listed = [form.format(name=n, json=_json(a), call=_named((n, a))) for n, a in calls]
        return begin + between.join(listed) + end

    return render


def _marked(call: tuple[str, str, str], key: str, write: Callable[[Any], str] = _json) -> Any:
    """Renders calls with parameters: ``call`` is a call's begin and end, and the separator."""

    def render(calls: list[Call]) -> str:
        return call[2].join(
            call[0].format(name)
            + "".join(key.format(k, v if isinstance(v, str) else write(v)) for k, v in a.items())
            + call[1]
            for name, a in calls
        )

    return render


def _jinja(value: Any) -> str:
    """As Qwen's template has it: objects and lists as JSON, anything else as Python's text."""
    return _json(value) if isinstance(value, (dict, list)) else str(value)


_FUNCTION = "<function={}>\n"
RENDERED: dict[str, tuple[str, Callable[[list[Call]], str]]] = {
    "hermes": ("json", _each("<tool_call>\n{call}\n</tool_call>")),
    "llama": ("json", _each("{call}", "; ", "<|python_tag|>")),
    "granite": ("json", _each("{call}", ", ", "<|tool_call|>[", "]")),
    "bare": ("json", _each("{call}", ", ", "[", "]")),
    "phi": ("phi4_mini", _each("{call}", ", ", "functools[", "]")),
    "mistral": ("mistral", _each("[TOOL_CALLS]{name}[ARGS]{json}", "")),
    "mistral, listed": ("mistral", _each("{call}", ", ", "[TOOL_CALLS] [", "]")),
    "deepseek": (
        "deepseek",
        _each(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json}\n```<｜tool▁call▁end｜>",
            begin="<｜tool▁calls▁begin｜>",
            end="<｜tool▁calls▁end｜>",
        ),
    ),
    "kimi": (
        "kimi_k2",
        _each(
            "<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{json}<|tool_call_end|>",
            *("", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        ),
    ),
    "harmony": (
        "harmony",
        _each(
            "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json}<|call|>"
        ),
    ),
    "pythonic": ("pythonic", lambda calls: _python(calls, repr)),
    "pythonic, JSON": ("pythonic", lambda calls: _python(calls, _json)),
    "qwen": (
        "qwen3_coder",
        _marked(
            (f"<tool_call>\n{_FUNCTION}", "</function>\n</tool_call>", "\n"),
            "<parameter={}>\n{}\n</parameter>\n",
            _jinja,
        ),
    ),
    "seed": (
        "seed_oss",
        _marked(
            (f"<seed:tool_call>\n{_FUNCTION}", "\n</function>\n</seed:tool_call>", "\n"),
            "<parameter={}>{}</parameter>",
        ),
    ),
    "glm 4.5": (
        "glm45",
        _marked(
            ("<tool_call>{}\n", "</tool_call>", "\n"),
            "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n",
        ),
    ),
    "glm 4.7": (
        "glm45",
        _marked(
            ("<tool_call>{}", "</tool_call>", ""), "<arg_key>{}</arg_key><arg_value>{}</arg_value>"
        ),
    ),
}
MARKS = sorted(
    {mark for form in TOOL_FORMS.values() for mark in (*form.begins, *form.ends, *form.inner)}
    | {"</parameter>", "<parameter=text>", "<parameter=days>", "<parameter=zzz>"}
    | {"<function=now>", "<function=write-it>", "<function=zzz>", "<arg_key>days</arg_key>"}
    | {"write-it", "now", "zzz", "\n", "\\", "\\d", "'", '"', "{", "}", "[", "]", "3"}
)
NULLS = ("null", "None")


def _parts(written: str) -> list[str]:
    """All that stands between two places beside marks."""
    ends = sorted(
        {0, len(written), *(found.start() for found in re.finditer(r"\n?<|[\n{]", written))}
    )
    return [written[begin:end] for number, begin in enumerate(ends) for end in ends[number + 1 :]]


def _calls_of(render: Callable[[list[Call]], str]) -> st.SearchStrategy[list[Call]]:
    """Calls whose texts are made of marks, of parts of calls, and of anything."""
    parts = _parts(render([("write-it", {"text": "a", "days": 3}), ("now", {})]))
    scraps = st.one_of(st.sampled_from(MARKS), st.sampled_from(parts), st.text(max_size=3))
    texts = st.lists(scraps, max_size=8).map("".join)
    arguments = st.fixed_dictionaries(
        {"text": texts},
        optional={
            "days": st.integers(),
            "flag": st.booleans(),
            "maybe": st.none() | texts.filter(lambda text: text.strip() not in NULLS),
            "list": st.lists(texts, max_size=3),
            "box": st.fixed_dictionaries({}, optional={"in": texts}),
            "from": texts,
        },
    )
    call: st.SearchStrategy[Call] = st.one_of(
        arguments.map(lambda one: ("write-it", one)), st.just(("now", {}))
    )
    return st.lists(call, min_size=1, max_size=3)


def _characters(text: str) -> Counter[str]:
    """Without white space, what stands around calls, and the ends of values, which may lack."""
    around = r"</?(?:seed:)?tool_call>|</function>|</parameter>|</arg_value>"
    return Counter(re.sub(rf"[\s,;]|{around}", "", text))


@pytest.mark.threat("injected-tool-calls")
@pytest.mark.parametrize("name", RENDERED)
@given(data=st.data(), cuts=CUTS)
@settings(max_examples=40, deadline=None)
def test_what_a_template_renders_is_read_back(name: str, data: Any, cuts: list[int]) -> None:
    family, render = RENDERED[name]
    calls = data.draw(_calls_of(render))
    written = render(calls)
    _, text, found, reason = read(AnswerReader(TOOLS, ChatFormat(family)), [written])
    if found == calls:
        assert (text, reason) == ("", "tool_calls")
    else:  # another reading of the same marks: nothing is lost, and nothing is added
        assert TOOL_FORMS[family].parameter
        assert _characters(render(found) + text) == _characters(written)
    stream = read(AnswerReader(TOOLS, ChatFormat(family)), pieces_of(written, cuts))
    assert stream == ("", text, found, reason)


def _write(**arguments: Any) -> list[Call]:
    return [("write-it", arguments)]


def _qwen(inside: str, name: str = "write-it") -> str:
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def _glm(inside: str, name: str = "write-it") -> str:
    return f"<tool_call>{name}\n{inside}</tool_call>"


def _parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


X = _parameter("text", "x")
BROKEN = _qwen("x\n")
ODD = _qwen(_parameter("y", "1"), "zzz")
NO_JSON = "{'text': 'x'}"
IN_JSON = '<tool_call>{"name": "write-it", "arguments": %s}</tool_call>'
CUT = _parameter("text", f"a\n{_qwen('', 'now')}").removesuffix("</parameter>\n")


@pytest.mark.threat("injected-tool-calls")
@pytest.mark.parametrize(
    "family, written, text, calls",
    [
        # An end mark that is left out.
        ("qwen3_coder", _qwen("<parameter=text>\na b\n"), "", _write(text="a b")),
        ("qwen3_coder", _qwen("<parameter=text>\na </function> b\n"), None, []),
        ("glm45", _glm("<arg_key>text</arg_key>\n<arg_value>x\n"), "", _write(text="x")),
        (
            "qwen3_coder",
            _qwen(f"<parameter=days>\n3\n{X}"),
            "",
            _write(days=3, text="x"),
        ),
        # A call that can't be read whole, with calls within it; but not its neighbour.
        ("qwen3_coder", _qwen(CUT)[: -len("</function>\n</tool_call>")], None, []),
        ("qwen3_coder", BROKEN, None, []),
        ("qwen3_coder", f"{BROKEN}\n{_qwen(X)}", None, []),
        ("qwen3_coder", f"{_qwen(X)}\n{_qwen(CUT)[:-30]}", f"{_qwen(CUT)[:-30]}", _write(text="x")),
        ("qwen3_coder", f"{_qwen(X)}\n{ODD}", ODD, _write(text="x")),
        ("qwen3_coder", f"{ODD}\n{_qwen(X)}", f"{ODD}\n", _write(text="x")),
        ("qwen3_coder", _qwen(X + _parameter("zzz", "1")), "", _write(text="x", zzz=1)),
        ("qwen3_coder", _qwen(_parameter("zzz", "1")), "", _write(zzz=1)),
        ("qwen3_coder", f"{_qwen(X)}\nDone.", "Done.", _write(text="x")),
        # Without the mark around a call.
        ("qwen3_coder", f"I look.\n\n{_qwen(X)[len('<tool_call>') + 1 :]}", "I look.\n\n", _write(text="x")),
        ("qwen3_coder", "Use <function=now> for it", None, []),
        ("pythonic", "[write-it(**{'text': 'x'}, from='y')]", "", _write(**{"text": "x", "from": "y"})),
        ("pythonic", "[write-it(text='x', **{'text': 'y'})]", None, []),
        ("pythonic", "[write-it(text='x'), zzz(y=1), now(3)]", "zzz(y=1)\nnow(3)", _write(text="x")),
        ("pythonic", "[write-it(text='a\nb\\d')]", "", _write(text="a\nb\\d")),
        ("json", IN_JSON % json.dumps('{"text": "x"}'), "", _write(text="x")),
        ("json", IN_JSON % '"no JSON"', None, []),
        ("json", IN_JSON % "null", "", _write()),
        ("json", IN_JSON % '{"text": "a\nb"}', "", _write(text="a\nb")),
        ("json", IN_JSON % r'{"text": "C:\path \d+ \u12 \n"}', "", _write(text="C:\\path \\d+ \\u12 \n")),
        # Calls in what broke off, or is no JSON; and beside it.
        ("mistral", '[TOOL_CALLS]write-it{"text": "a } [TOOL_CALLS]now{} b', None, []),
        ("pythonic", "<|python_start|>[write-it(text='<|python_start|>[now()] b", None, []),
        ("json", IN_JSON % '{"text": "<tool_call>{"name": "now"}</tool_call>"}', None, []),
        ("json", f"{IN_JSON % NO_JSON}\n{IN_JSON % '{}'}", f"{IN_JSON % NO_JSON}\n", _write()),
        ("json", '[{"name": "now"}, {"name": "zzz"}]', '{"name": "zzz"}', [("now", {})]),
        ("mistral", '[TOOL_CALLS]write-it{"text": "a\nb\\d"}', "", _write(text="a\nb\\d")),
    ],
)  # fmt: skip
def test_a_call_is_read_whole_or_stays_text(
    family: str, written: str, text: str | None, calls: list[Call]
) -> None:
    for pieces in ([written], list(written)):
        found = read(AnswerReader(TOOLS, ChatFormat(family)), pieces)
        assert found[1:3] == (written if text is None else text, calls)


@pytest.mark.parametrize(
    "schema, values",
    [
        ({"type": "string"}, {"12345": "12345", "true": "true", "null": "null"}),
        ({"type": ["string", "null"]}, {"12345": "12345", "null": None, "None": None}),
        ({"anyOf": [TEXT, {"type": "null"}]}, {"12345": "12345", "null": None, "{}": "{}"}),
        ({"type": "string", "nullable": True}, {"true": "true", "null": None}),
        ({"enum": ["1", "b"]}, {"1": "1"}),
        ({"const": "1"}, {"1": "1"}),
        ({"$ref": "#/$defs/text"}, {"1": "1"}),
        ({"$ref": "#/$defs/itself"}, {"1": 1}),
        ({"$ref": "https://example.org/x"}, {"1": 1}),
        ({"type": ["no type", {}]}, {"1": 1}),
        ({"allOf": [{"type": ["string", "integer"]}, TEXT]}, {"1": "1"}),
        ({"oneOf": [TEXT, {"type": "number"}]}, {"1": 1, "1.5": 1.5, "true": "true"}),
        ({"type": "integer"}, {"3": 3, "2.0": 2.0, "three": "three"}),
        ({"type": "boolean"}, {"True": True, "false": False}),
        ({"type": "array"}, {'["a\n\\d"]': ["a\n\\d"]}),
        ({}, {"1": 1, "True": True, "None": None, '"a"': '"a"', "a": "a"}),
        (True, {"1": 1}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_value_is_what_its_schema_takes(schema: Any, values: dict[str, Any]) -> None:
    definitions = {"text": TEXT, "itself": {"$ref": "#/$defs/itself"}}
    parameters = {"$defs": definitions, "properties": {"x": schema}}
    types = types_of({"parameters": parameters})["x"]
    for text, value in values.items():
        found = typed(text, types)
        assert (found, type(found)) == (value, type(value))


# Marks that have more readings than anybody could look at; and calls by the hundred.
ORDERS = "".join(f"{_parameter(key, 'a')}{_parameter(key, 'b')}" for key in WRITE["properties"])


@pytest.mark.threat("ambiguous-tool-calls")
@pytest.mark.parametrize(
    "written, num_calls",
    [
        (_qwen(X * 20_000) + "</parameter>", 0),
        (_qwen(ORDERS * 1000) + "</parameter>", 0),
        (f"{_qwen(X)}\n" * 5000 + "</parameter>", 0),
        ("<function=write-it>\n" * 20_000, 0),
        (_qwen('<parameter=box>\n{"in": "' * 5000), 0),
        (f"{_qwen(X)}\n" * 300, 300),
        (_qwen(_parameter("text", f"{_qwen(X)}\n" * 300)), 1),
    ],
    ids=range(7),
)
def test_marks_of_too_many_readings_stay_text(written: str, num_calls: int) -> None:
    _, text, calls, _ = read(AnswerReader(TOOLS, ChatFormat("qwen3_coder")), [written])
    assert len(calls) == num_calls
    assert (text == written) is (num_calls == 0)
