"""Chats are rendered as transformers renders them; a caller's that takes too long is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.tokenizing import chat_templates
from hf_triton.text_generation.request.chat import ChatTemplate

RICH = (
    "{{ bos_token }}{{ strftime_now('%Y')[:2] }}\n"
    "{%- for message in messages %}\n"
    "    {%- if message.role == 'stop' %}{% break %}{% endif %}\n"
    "{% generation %}{{ message.role }}{% endgeneration %}\n"
    "{{ message.content | tojson(indent=1) }}"
    "{%- endfor %}{{ tools | tojson }}{{ extra }}{{ dict(a=1) }}"
)
LOOKS_AHEAD = (  # as gpt-oss'
    "{% for one in messages %}{% for later in messages[loop.index:] %}"
    "{% if later.role == 'tool' %}{{ later.content }}{% endif %}{% endfor %}{% endfor %}"
    "{{ messages[0].content }}"
)
TOOLS_EACH_TIME = "{% for one in messages %}{{ tools | tojson }}{{ one.content }}{% endfor %}"
USER = {"role": "user", "content": 'hi "there" é \ud800 ☃'}


def tokenizer_of(template: str) -> Any:
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", chat_template=template
    )
    chat_templates.limit_rendering()
    return made


def test_a_chat_is_rendered_as_transformers_does() -> None:
    messages = [USER, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]
    messages.append({"role": "stop", "content": "never"})
    given: dict[str, Any] = {"tools": [{"type": "function"}], "extra": {"b": [1.5, None, True]}}
    rendered = tokenizer_of(RICH).apply_chat_template(messages, tokenize=False, **given)
    compiled = chat_template_utils._cached_compile_jinja_template(RICH)
    assert rendered == compiled.render(messages=messages, bos_token="<s>", **given)
    variables = chat_template_utils._get_template_variables(RICH)
    assert variables == {"messages", "tools", "extra", "bos_token"}


@pytest.mark.threat("endless-chats")
@pytest.mark.parametrize(
    "template, num_messages, tools",
    [(LOOKS_AHEAD, 20_000, None), (TOOLS_EACH_TIME, 2000, [{"about": "x" * 2**20}])],
    ids=["time", "characters"],
)
def test_a_chat_that_takes_its_template_too_long_is_refused_and_others_are_rendered(
    template: str, num_messages: int, tools: list[Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_templates, "LIMIT_S", 1.0)
    chat = ChatTemplate(tokenizer_of(template))
    for _ in range(2):
        with pytest.raises(
            RequestError,
            match=r"^messages: this model's chat template takes more than 1 s to render them, or",
        ):
            chat.render([{"role": "user", "content": "x"}] * num_messages, tools, {})
        assert str(USER["content"]) in chat.render([USER], None, {})
