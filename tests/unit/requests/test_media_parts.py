"""The places of a request's images and sounds, and their order in the prompt."""

from __future__ import annotations

from typing import Any

import pytest

from hf_triton.runtime.errors import RequestError
from hf_triton.text_generation.request.media_reader import Item, items_of_row, take_items

TEXT = {"type": "text", "text": "hi"}
DATA = "data:image/png;base64,AAAA"


def row(**given: Any) -> dict[str, Any]:
    return {"image": (), "audio": (), "num_images": None, "num_sounds": None, **given}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def test_empty_elements_are_none_unless_a_count_says_that_they_are() -> None:
    found = items_of_row(row(image=(b"a", b""), audio=(b"", "b")))
    assert found == [Item("image", "image[0]", b"a"), Item("audio", "audio[0]", "b")]
    found = items_of_row(row(image=(b"", b"a", b"b"), num_images=2))
    assert [(item.place, item.value) for item in found] == [("image[0]", b""), ("image[1]", b"a")]


@pytest.mark.parametrize("count", [-1, 3])
def test_a_count_that_is_no_number_of_elements_is_refused(count: int) -> None:
    with pytest.raises(RequestError, match=f"num_images: got {count}, allowed: 0 to 2"):
        items_of_row(row(image=(b"a", b"b"), num_images=count))


@pytest.mark.parametrize(
    "part, kind, value",
    [
        ({"type": "image_url", "image_url": {"url": DATA, "detail": "low"}}, "image", DATA),
        ({"type": "image_url", "image_url": DATA}, "image", DATA),
        ({"type": "image", "image": "AAAA"}, "image", "AAAA"),
        ({"type": "image", "base64": "AAAA"}, "image", "AAAA"),
        ({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}, "audio", "AA"),
        ({"type": "audio_url", "audio_url": {"url": DATA}}, "audio", DATA),
        ({"type": "audio", "audio": "AA"}, "audio", "AA"),
    ],
)
def test_parts_of_every_clients_form_are_taken_out(part: Any, kind: str, value: str) -> None:
    messages, items = take_items([user(TEXT, part)], [])
    assert messages == [user(TEXT, {"type": kind})]
    assert items == [Item(kind, "messages[0].content[1]", value)]


def test_parts_without_a_file_stand_for_the_tensors_elements_in_order() -> None:
    given = items_of_row(row(image=(b"a", b"b"), audio=(b"c",)))
    chat = [user({"type": "image"}, TEXT), user({"type": "audio"}, {"type": "image"})]
    messages, items = take_items(chat, given)
    assert messages == chat
    assert [item.value for item in items] == [b"a", b"c", b"b"]


def test_without_such_parts_they_come_first_in_the_users_last_message() -> None:
    given = items_of_row(row(image=(b"a", b"b")))
    chat = [user(TEXT), {"role": "assistant", "content": "yes"}, {"role": "user", "content": "why"}]
    messages, items = take_items(chat, given)
    assert messages[:2] == chat[:2]
    assert messages[2] == user(
        {"type": "image"}, {"type": "image"}, {"type": "text", "text": "why"}
    )
    assert [item.value for item in items] == [b"a", b"b"]


@pytest.mark.parametrize(
    "messages, given, said",
    [
        ([user({"type": "image"})], (), r"messages\[0\].content\[0\]: no image in it, and no "),
        ([user({"type": "image"})], (b"a", b"b"), r"image\[1\]: no part of messages refers to it"),
        ([{"role": "system", "content": "a"}], (b"a",), r"image\[0\]: messages has no user's"),
        ([user({"type": "image", "image": 3})], (), r"content\[0\]: got 3, allowed: base64 or"),
    ],
)
def test_what_does_not_agree_is_refused_by_its_place(
    messages: list[Any], given: tuple[bytes, ...], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        take_items(messages, items_of_row(row(image=given)))


def test_messages_of_another_form_are_left_for_the_template_to_refuse() -> None:
    odd: list[Any] = [None, 3, {"role": "user"}, {"content": [None, 3, {"type": ["image"]}]}]
    assert take_items(odd, []) == (odd, [])
