"""Chat templates are rendered in a sandbox, as transformers renders them; what does not end there
is refused.
"""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from hf_triton.runtime import log
from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.tokenizing import chat_templates
from hf_triton.runtime.tokenizing.guarded import guard
from hf_triton.text_generation.request.chat import ChatTemplate

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
GROWS = (
    "{% set ns = namespace(x='a') %}"
    "{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
)
RICH = (
    "{{ bos_token }}{{ strftime_now('%Y')[:2] }}\n"
    "{%- for message in messages %}\n"
    "    {%- if message.role == 'stop' %}{% break %}{% endif %}\n"
    "{% generation %}{{ message.role }}{% endgeneration %}\n"
    "{{ message.content | tojson(indent=1) }}"
    "{%- endfor %}{{ tools | tojson }}{{ extra }}{{ dict(a=1) }}"
)
USER = {"role": "user", "content": 'hi "there" é \ud800 ☃'}


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(log, "warn", found.append)
    monkeypatch.setattr(chat_templates, "LIMIT_S", 1.0)
    return found


def tokenizer_of(template: str) -> Any:
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", chat_template=template
    )
    guard(made)
    return made


@pytest.mark.threat("endless-templates")
def test_a_chat_is_rendered_as_transformers_does() -> None:
    messages = [USER, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]
    messages.append({"role": "stop", "content": "never"})
    given: dict[str, Any] = {"tools": [{"type": "function"}], "extra": {"b": [1.5, None, True]}}
    rendered = tokenizer_of(RICH).apply_chat_template(messages, tokenize=False, **given)
    compiled = chat_template_utils._cached_compile_jinja_template(RICH)
    assert rendered == compiled.render(messages=messages, bos_token="<s>", **given)
    variables = chat_template_utils._get_template_variables(RICH)
    assert variables == {"messages", "tools", "extra", "bos_token"}


@pytest.mark.threat("endless-templates")
@pytest.mark.parametrize(
    "template", [ENDLESS, GROWS, "{{ 9 ** (9 ** 9) }}", "{{ 'a' * 99999999999 }}"]
)
def test_a_template_that_does_not_end_is_told_of_and_its_chats_refused(
    template: str, warned: list[str]
) -> None:
    chat = ChatTemplate(tokenizer_of(template + "{{ messages[0].content }}"))
    expected = "this model's chat template takes more than 1 s, or too much memory, to render them"
    assert warned == [f"{expected}: chats will be refused"]
    with pytest.raises(RequestError, match=f"^messages: {expected}$"):
        chat.render([USER], None, {})


@pytest.mark.threat("endless-templates")
def test_a_chat_that_a_template_never_ends_is_refused_and_others_are_rendered(
    warned: list[str],
) -> None:
    long = "{% if messages | length > 1 %}" + ENDLESS + "{% endif %}{{ messages[0].content }}"
    chat = ChatTemplate(tokenizer_of(long))
    for _ in range(2):
        with pytest.raises(RequestError, match=r"^messages: this model's chat template takes more"):
            chat.render([USER, USER], None, {})
        assert chat.render([USER], None, {}) == USER["content"]
    assert not warned


def test_what_a_template_says_itself_is_told() -> None:
    chat = ChatTemplate(tokenizer_of("{{ raise_exception('no ' + messages[0].role) }}"))
    expected = "^messages: the chat template refuses them: no user$"
    with pytest.raises(RequestError, match=expected):
        chat.render([USER], None, {})
