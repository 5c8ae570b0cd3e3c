"""Chats with images through the templates that there are: of parts, of texts, of either."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from hf_triton.runtime.errors import RequestError
from hf_triton.text_generation.request.media_reader import MediaChatTemplate

IMAGE, TEXT = {"type": "image"}, {"type": "text", "text": "what?"}
# As LLaVA's: contents are lists of parts, and a text would be passed over.
OF_PARTS = (
    "{% for m in messages %}{{ m.role }}: {% for c in m.content if c.type == 'image' %}<image>\n"
    "{% endfor %}{% for c in m.content if c.type == 'text' %}{{ c.text }}{% endfor %} {% endfor %}"
)
# As Qwen2-VL's: either.
OF_EITHER = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'image' %}<b><image><e>{% elif 'text' in c %}"
    "{{ c.text }}{% endif %}{% endfor %}{% endif %} {% endfor %}"
)
OF_TEXTS = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
# As Pixtral's: lists of the user alone.
OF_BOTH = (
    "{% for m in messages %}{% if m.role == 'user' %}{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for c in m.content %}{% if c.type == 'image' %}<image>{% else %}{{ c.text }}"
    "{% endif %}{% endfor %}{% endif %}{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}"
)


def template(text: str | None) -> MediaChatTemplate:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", chat_template=text
    )
    return MediaChatTemplate(tokenizer, {"image": "<image>"})


def rendered(text: str, *messages: Any) -> str:
    return template(text).render(list(messages), None, {})


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


ASSISTANT = {"role": "assistant", "content": "a cat"}


@pytest.mark.parametrize(
    "text, expected",
    [
        (OF_PARTS, "user: <image>\nwhat? assistant: a cat user: why? "),
        (OF_EITHER, "user: <b><image><e>what? assistant: a cat user: why? "),
        (OF_TEXTS, "user: <image>\nwhat? assistant: a cat user: why? "),
        (OF_BOTH, "<image>what?a cat</s>why?"),
    ],
    ids=["parts", "either", "texts", "both"],
)
def test_a_chat_with_an_image_is_rendered_as_the_template_wants_it(
    text: str, expected: str
) -> None:
    why = {"role": "user", "content": "why?"}
    assert rendered(text, user(IMAGE, TEXT), ASSISTANT, why) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        (OF_PARTS, "<image>\n"),
        (OF_EITHER, "<b><image><e>"),
        (OF_TEXTS, "<image>"),
        (None, "<image>"),
    ],
)
def test_the_placeholder_is_the_templates_own_else_the_processors(
    text: str | None, expected: str
) -> None:
    chat = template(text)
    assert chat.placeholders == {"image": expected, "audio": ""}
    assert chat.tokens == {"image": "<image>", "audio": ""}


def test_a_template_may_have_a_placeholder_of_its_own() -> None:
    chat = template(OF_PARTS.replace("<image>", "<start_of_image>"))
    assert chat.tokens["image"] == "<start_of_image>"


def test_a_part_that_is_neither_text_nor_file_is_refused() -> None:
    for text in (OF_PARTS, OF_TEXTS):
        with pytest.raises(RequestError, match=r"messages\[0\].content\[1\]: allowed: "):
            rendered(text, user(TEXT, {"type": "video", "video": "a"}))
