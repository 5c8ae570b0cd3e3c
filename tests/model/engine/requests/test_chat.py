"""Chats through templates: what a template takes is rendered as transformers does, the rest is
refused, and no error quotes the chat.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_triton.runtime.errors import RequestError
from hf_triton.text_generation.request.chat import ChatTemplate
from hf_triton.text_generation.request.chat_formats import ChatFormat

DEMO = Path(__file__).parents[4] / "demo" / "model"
SECRET = "a message that no log may show"
CHATML = (
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{% endif %}"
    "{% endif %}"
)
STRICT = (
    "{% for message in messages %}"
    "{% if message.role != 'user' %}{{ raise_exception('users only: ' + message.content) }}"
    "{% elif loop.index0 %}{{ raise_exception('one message only') }}{% endif %}"
    "{{ message.content }}{% endfor %}"
)
USER = {"role": "user", "content": "hi"}


def template(chat_template: Any) -> ChatTemplate:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", chat_template=chat_template
    )
    return ChatTemplate(tokenizer)


def error_of(
    chat: ChatTemplate, messages: Any, tools: Any = None, kwargs: dict[str, Any] | None = None
) -> str:
    with pytest.raises(RequestError) as raised:
        chat.render(messages, tools, kwargs or {})
    assert raised.value.status == "INVALID_ARG"
    assert SECRET not in str(raised.value)
    return str(raised.value)


def test_a_chat_becomes_the_prompt_of_an_answer() -> None:
    chat, user = template(CHATML), "<s><|im_start|>user\none\ntwo<|im_end|>\n"
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "user", "content": parts}]
    assert chat.render(messages, None, {}) == f"{user}<|im_start|>assistant\n"
    assert chat.render(messages, None, {"add_generation_prompt": False}) == user
    chat = template("{% for m in messages %}{{ m.name }}{{ m.tool_calls | tojson }}{% endfor %}")
    message: dict[str, Any] = {"role": "assistant", "name": "Ann", "tool_calls": [1]}
    for content in ({}, {"content": None}):
        assert chat.render([{**message, **content}], None, {}) == "Ann[1]"


def test_the_demo_models_chat_is_its_own_conversation() -> None:
    chat = ChatTemplate(AutoTokenizer.from_pretrained(DEMO))
    messages = [{"role": "system", "content": "Be kind."}, USER]
    system, user = "<|im_start|>system\nBe kind.<|im_end|>\n", "<|im_start|>user\nhi<|im_end|>\n"
    assert chat.render(messages, None, {}) == f"{system}{user}<|im_start|>assistant\n"
    messages = [USER, {"role": "assistant", "content": "Hello, my"}]
    rendered = chat.render(messages, None, {"continue_final_message": True})
    assert rendered == f"{user}<|im_start|>assistant\nHello, my"
    assert chat.format == ChatFormat()  # calls as Hermes writes them, no reasoning


def test_tools_and_a_templates_own_variables_are_passed_on() -> None:
    rendered = template(CHATML).render([USER], [{"type": "function"}], {"enable_thinking": False})
    assert rendered.startswith('<s>[{"type": "function"}]\n')
    assert rendered.endswith("assistant\n<think></think>")


def test_tools_choose_among_several_templates() -> None:
    chat = template({"default": "plain", "tool_use": "{{ tools | length }} tools"})
    assert chat.render([USER], None, {}) == "plain"
    assert chat.render([USER], [], {}) == "plain"
    assert chat.render([USER], [{}, {}], {}) == "2 tools"


@pytest.mark.parametrize(
    "messages, expected",
    [
        ([], "messages: got an empty list, allowed: one message or more"),
        ([SECRET], "messages[0]: got a text, allowed: an object"),
        ([USER, None], "messages[1]: got null, allowed: an object"),
        ([{"content": SECRET}], "messages[0].role: got none, allowed: a text, such as user"),
        ([{"role": 5, "content": ""}], "messages[0].role: got 5, allowed: a text, such as user"),
        (
            [{"role": SECRET * 9, "content": ""}],
            "messages[0].role: got a text, allowed: a text, such as user",
        ),
        ([{"role": "user"}], "messages[0].content: missing, a text is required"),
        (
            [{"role": "assistant", "tool_calls": 5}],
            "messages[0].tool_calls: got 5, allowed: a list",
        ),
        (
            [{"role": "user", "content": {"text": SECRET}}],
            "messages[0].content: got an object, allowed: a text or a list of text parts",
        ),
        (
            [{"role": "user", "content": [SECRET]}],
            "messages[0].content[0]: got a text, allowed: an object",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            'messages[0].content[0]: allowed: {"type": "text", "text": ...}, a text only',
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_messages_of_another_form_are_refused(messages: list[Any], expected: str) -> None:
    assert error_of(template(CHATML), messages) == expected


NOT_TAKEN = (
    "this model's chat template does not take it; allowed: add_generation_prompt, "
    "continue_final_message, enable_thinking"
)


@pytest.mark.parametrize(
    "kwargs, expected",
    [
        *(
            ({name: True}, f"{name}: {NOT_TAKEN}")
            for name in ("enable_thinkin", "messages", "tools", "bos_token", "chat_template")
        ),
        (
            {"add_generation_prompt": "no"},
            "add_generation_prompt: got a text, allowed: true or false",
        ),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message and add_generation_prompt: got true for both, allowed: one of",
        ),
    ],
    ids=str,
)
def test_what_a_template_does_not_take_is_refused(kwargs: dict[str, Any], expected: str) -> None:
    error = error_of(template(CHATML), [USER], None, kwargs)
    assert error.startswith(f"chat_template_kwargs: {expected}")


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
USERS = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}\n{% endif %}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "now", "parameters": {}}}


def test_a_template_that_takes_no_tools_is_told_of_them_in_words() -> None:
    told = '{"name": "now", "parameters": {}}'
    for messages in ([USER], [{"role": "system", "content": "Be kind."}, USER]):
        rendered = template(PLAIN).render(messages, [TOOL], {})
        assert rendered.startswith("system: ")
        assert rendered.count("system: ") == 1
        assert told in rendered
        assert rendered.endswith("\nuser: hi\n")
    rendered = template(USERS).render([USER], [TOOL], {})
    assert rendered.startswith("hi\nYou can call")
    assert told in rendered


def test_calls_and_outputs_are_texts_for_a_template_that_knows_none() -> None:
    function = {"name": "now", "arguments": '{"a": 1}'}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "one"}]},
        {"role": "user", "content": "Well?"},
    ]
    assert template(PLAIN).render(messages, None, {}) == (
        'user: hi\nassistant: <tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>\n'
        "user: <tool_response>\nnoon\n</tool_response>\n<tool_response>\none\n</tool_response>\n"
        "Well?\n"
    )
    calls = [{"function": 5}, None]
    messages = [USER, {"role": "tool", "tool_calls": calls}, {"role": "user", "tool_calls": calls}]
    assert "<tool_response>\n</tool_response>" in template(PLAIN).render(messages, None, {})


_GOOD, _CUT = '{"city": "Rome"}', '{"city": "Ro'
_LISTED = "{% for key, value in given.items() %}{{ key }}={{ value }}{% endfor %}"


@pytest.mark.parametrize(
    "shown, good, cut",
    [
        ("{{ given | tojson }}", _GOOD, json.dumps(_CUT)),
        ("{{ given if given is string else given | tojson }}", _GOOD, _CUT),
        ("{{ '```' + given + '```' }}", f"```{_GOOD}```", f"```{_CUT}```"),
        (_LISTED, "city=Rome", f"INVALID_JSON={_CUT}"),
        (_LISTED.replace(".items()", "|items"), "city=Rome", f"INVALID_JSON={_CUT}"),
        (
            "{% for key in given %}{{ key }}={{ given[key] }}{% endfor %}",
            *("city=Rome", f"INVALID_JSON={_CUT}"),
        ),
        ("{{ given.city }}", "Rome", ""),
    ],
)
def test_a_chat_with_a_call_that_was_cut_off_goes_on(shown: str, good: str, cut: str) -> None:
    """As Hermes and Mistral, Qwen, DeepSeek, GLM, Qwen Coder and Llama 4 show arguments."""
    chat = template(
        "{% for message in messages %}{% for call in message.tool_calls %}"
        f"{{% set given = call.function.arguments %}}{shown}{{% endfor %}}{{% endfor %}}"
    )
    for arguments, expected in ((_GOOD, good), (_CUT, cut)):
        function = {"name": "weather", "arguments": arguments}
        calling = {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
        assert chat.render([USER, calling], None, {}) == expected


@pytest.mark.parametrize(
    "arguments, shown",
    [("", "{}"), (None, "{}"), ({"a": 1}, '{"a": 1}'), ("[1]", '"[1]"'), ([1], '"[1]"')],
)
def test_arguments_of_calls_are_objects_or_texts(arguments: Any, shown: str) -> None:
    calling = {"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}
    chat = template(
        "{% for one in messages[1].tool_calls %}{{ one.function.arguments | tojson }}{% endfor %}"
    )
    assert chat.render([USER, calling], None, {}) == shown


_SYSTEM = {"role": "system", "content": "Be kind."}
_SAYS = {"role": "assistant", "content": "Well"}
_TOLD = "<system>\nBe kind.\n</system>"
_FIRST_ONLY = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('no') }}{% endif %}[{{ message.role }}: {{ message.content }}]{% endfor %}"
)


@pytest.mark.parametrize(
    "messages, rendered",
    [
        ([USER, _SYSTEM], f"[user: hi\n{_TOLD}]"),
        ([_SYSTEM, _SYSTEM, USER], "[system: Be kind.\nBe kind.][user: hi]"),
        ([USER, _SAYS, _SYSTEM, USER], f"[user: hi][assistant: Well][user: {_TOLD}\nhi]"),
        ([USER, _SAYS, _SYSTEM], f"[user: hi][assistant: Well][user: {_TOLD}]"),
        (
            [USER, {"role": "tool", "content": "3"}, _SYSTEM, _SAYS],
            f"[user: hi][tool: 3\n{_TOLD}][assistant: Well]",
        ),
    ],
)
def test_a_later_system_message_reaches_a_template_that_takes_none(
    messages: list[Any], rendered: str
) -> None:
    """Chats with tools too: then the template has the word in it."""
    assert template("{#- tool #}" + _FIRST_ONLY).render(messages, None, {}) == rendered
    taken = template("{#- tool #}{% for one in messages %}[{{ one.content }}]{% endfor %}")
    assert "[Be kind.]" in taken.render(messages, None, {})


@pytest.mark.parametrize(
    "shown, end",
    [
        ("{{ reasoning_effort }}", "max"),
        ("", "hi"),
        ("{{ raise_exception('no') if reasoning_effort }}", "hi"),
    ],
)
def test_an_option_that_is_wished_is_left_out_where_it_is_not_taken(shown: str, end: str) -> None:
    chat = template("{{ messages[0].content }}" + shown)
    assert chat.render([USER], None, {"reasoning_effort?": "max"}).endswith(end)


def test_a_tools_image_is_told_of_where_it_cannot_be_seen() -> None:
    parts = [{"type": "text", "text": "a.png"}, {"type": "image"}]
    rendered = template(CHATML).render([USER, {"role": "tool", "content": parts}], None, {})
    assert "a.png\n[image left out: this model reads texts alone]" in rendered


@pytest.mark.parametrize(
    "chat_template, effort, end",
    [
        (CHATML, "none", "<think></think>"),
        (CHATML, "high", "assistant\n"),
        ("{{ messages[0].content }}", "none", "hi"),
        ("{{ reasoning_effort }}", "low", "low"),
    ],
)
def test_how_much_to_reason_is_told_as_the_template_takes_it(
    chat_template: str, effort: str, end: str
) -> None:
    rendered = template(chat_template).render([USER], None, {"reasoning_effort": effort})
    assert rendered.endswith(end)


def test_an_effort_that_no_template_knows_is_refused() -> None:
    chat = template("{{ messages[0].content }}</think>")
    assert chat.format.reasoning == "think"
    for effort in ("none", "high"):
        assert "reasoning_effort" in error_of(chat, [USER], None, {"reasoning_effort": effort})


def test_a_template_that_ignores_an_option_refuses_it() -> None:
    chat = template("{{ messages[0].content }}")
    assert error_of(template(CHATML), [USER], [1]) == "tools[0]: got 1, allowed: an object"
    assert error_of(chat, [USER], None, {"add_generation_prompt": False}) == (
        "chat_template_kwargs: add_generation_prompt: got false, this model's chat template "
        "decides by itself; allowed: true"
    )


def test_what_a_template_says_reaches_the_caller_but_not_a_quotation() -> None:
    chat = template(STRICT)
    expected = "messages: the chat template refuses them: one message only"
    assert error_of(chat, [USER, USER]) == expected
    expected = "messages: the chat template can't render them (TemplateError)"
    assert error_of(chat, [{"role": "system", "content": SECRET}]) == expected


@pytest.mark.parametrize(
    "chat_template, expected",
    [
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[0].nothing.at_all }}", "UndefinedError"),
        ("{{ messages[0].content.__class__.__mro__ }}", "SecurityError"),
    ],
)
def test_a_template_that_fails_on_a_chat_leaks_none_of_it(
    chat_template: str, expected: str
) -> None:
    error = error_of(template(chat_template), [{"role": "user", "content": SECRET}])
    assert error == f"messages: the chat template can't render them ({expected})"


def test_a_message_that_can_not_be_continued_is_told_so() -> None:
    chat = template("{% for m in messages %}{{ m.content[:2] }}{% endfor %}")
    messages = [USER, {"role": "assistant", "content": SECRET}]
    assert error_of(chat, messages, None, {"continue_final_message": True}) == (
        "chat_template_kwargs: continue_final_message: the last message can't be continued"
    )


@pytest.mark.threat("huge-input")
def test_deeply_nested_messages_are_a_request_error() -> None:
    nested: Any = SECRET
    for _ in range(100_000):
        nested = [nested]
    messages = [{**USER, "tool_calls": nested}]
    expected = "messages: the chat template can't render them (RecursionError)"
    assert error_of(template(CHATML), messages) == expected


def test_a_missing_template_and_a_broken_one_refuse_chats(log_lines: list[str]) -> None:
    expected = "messages: this model has no chat template; send text_input"
    assert error_of(template(None), [USER]) == expected
    chat = template("{% for %}")
    assert len(log_lines) == 1
    assert log_lines[0].startswith("W this model's chat template can't be used (TemplateSyntaxErr")
    expected = "messages: this model's chat template can't be used (TemplateSyntaxError)"
    assert error_of(chat, [USER]) == expected


LOOKS_AHEAD = (  # as gpt-oss'
    "{% for one in messages %}{% for later in messages[loop.index:] %}"
    "{% if later.role == 'tool' %}{{ later.content }}{% endif %}{% endfor %}{% endfor %}"
    "{{ messages[0].content }}"
)
CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.threat("endless-chats")
@pytest.mark.parametrize(
    "messages",
    [
        [USER] * 20_000,
        [USER, {"role": "assistant", "content": "", "tool_calls": [CALL] * 19_998}],
    ],
    ids=["messages", "calls"],
)
def test_a_chat_that_takes_its_template_long_is_refused_and_others_are_rendered(
    messages: list[Any],
) -> None:
    chat = template(LOOKS_AHEAD)
    said = "^messages: got 20000, calls of tools included, allowed: at most 4096$"
    with pytest.raises(RequestError, match=said):
        chat.render(messages, None, {})
    assert chat.render([USER] * 100, None, {}) == "hi"
