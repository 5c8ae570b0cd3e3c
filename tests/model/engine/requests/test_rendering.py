"""A chat that would take its template too long is refused before it is rendered."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from hf_triton.runtime.errors import RequestError
from hf_triton.text_generation.request.chat import ChatTemplate

LOOKS_AHEAD = (  # as gpt-oss'
    "{% for one in messages %}{% for later in messages[loop.index:] %}"
    "{% if later.role == 'tool' %}{{ later.content }}{% endif %}{% endfor %}{% endfor %}"
    "{{ messages[0].content }}"
)
USER = {"role": "user", "content": "x"}
CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.threat("endless-chats")
@pytest.mark.parametrize(
    "messages",
    [[USER] * 20_000, [USER, {"role": "assistant", "content": "", "tool_calls": [CALL] * 19_998}]],
    ids=["messages", "calls"],
)
def test_a_chat_that_takes_its_template_long_is_refused_and_others_are_rendered(
    messages: list[Any],
) -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), chat_template=LOOKS_AHEAD
    )
    chat = ChatTemplate(tokenizer)
    said = "^messages: got 20000, calls of tools included, allowed: at most 4096$"
    with pytest.raises(RequestError, match=said):
        chat.render(messages, None, {})
    assert chat.render([USER] * 100, None, {}) == "x"
