"""The images and sounds of a request, where they stand in it, and their order in the prompt.

Decodes nothing: a value is a file's bytes, base64 or a data: URL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.tensors import kind_of, shown

KINDS = ("image", "audio")
# Types of OpenAI's, vLLM's and Hugging Face's chats, and the keys that may hold a file or its URL.
_TYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "image": ("image", ("image", "base64", "url", "image_url")),
    "image_url": ("image", ("image_url",)),
    "audio": ("audio", ("audio", "base64", "url", "audio_url")),
    "audio_url": ("audio", ("audio_url",)),
    "input_audio": ("audio", ("input_audio",)),
}


@dataclass(frozen=True)
class Item:
    """An image or a sound: ``kind`` is one of KINDS; errors about it begin with ``place``."""

    kind: str
    place: str
    value: bytes | str


def items_of_row(row: Mapping[str, Any]) -> list[Item]:
    """Those of the tensors, images first. Rows of a batch have as many elements as the longest:
    empty ones are none, unless the row's count says that they are.

    Raises:
        RequestError: a count is no number of elements.
    """
    return [
        Item(kind, f"{kind}[{index}]", value)
        for kind, count in zip(KINDS, ("num_images", "num_sounds"), strict=True)
        for index, value in enumerate(_counted(row[kind], count, row[count]))
    ]


def take_items(messages: list[Any], given: Iterable[Item]) -> tuple[list[Any], list[Item]]:
    """The messages with ``{"type": "image"}`` or ``audio`` in place of every image and sound, and
    these in the order of the prompt. A part without a file stands for the next of ``given``; where
    no part does, those come first in the last message of the user.

    Raises:
        RequestError: a part holds no file, or there are more or fewer such parts than ``given``.
    """
    waiting = {kind: [item for item in given if item.kind == kind] for kind in KINDS}
    items: list[Item] = []
    found = [
        _without_files(message, f"messages[{number}]", waiting, items)
        for number, message in enumerate(messages)
    ]
    left = [item for kind in KINDS for item in waiting[kind]]
    if not left:
        return found, items
    if items:
        raise RequestError(f"{left[0].place}: no part of messages stands for it")
    last = max((n for n, one in enumerate(found) if _is_of_user(one)), default=None)
    if last is None:
        raise RequestError(f"{left[0].place}: messages has no user's message to put it in")
    content = found[last].get("content") or []
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(texts, list):
        return found, left  # which is refused as any such content is
    found[last] = {**found[last], "content": [*({"type": item.kind} for item in left), *texts]}
    return found, left


def _counted(values: tuple[Any, ...], name: str, count: int | None) -> tuple[Any, ...]:
    if count is None:
        return tuple(value for value in values if len(value))
    if not 0 <= count <= len(values):
        raise RequestError(f"{name}: got {shown(count)}, allowed: 0 to {len(values)}")
    return values[:count]


def _without_files(
    message: Any, where: str, waiting: Mapping[str, list[Item]], items: list[Item]
) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    parts = []
    for number, part in enumerate(content):
        item = _item(part, f"{where}.content[{number}]", waiting)
        if item is not None:
            items.append(item)
        parts.append(part if item is None else {"type": item.kind})
    return {**message, "content": parts}


def _item(part: Any, place: str, waiting: Mapping[str, list[Item]]) -> Item | None:
    """The file of a part of a message; None of a text."""
    of_type = _TYPES.get(str(part.get("type"))) if isinstance(part, dict) else None
    if of_type is None:
        return None
    kind, keys = of_type
    given = [part[key] for key in keys if part.get(key) is not None]
    if not given:
        if waiting[kind]:
            return waiting[kind].pop(0)
        raise RequestError(f"{place}: no {kind} in it, and none in the tensor {kind} stands for it")
    value = given[0]
    if isinstance(value, dict):  # OpenAI's
        value = value.get("url", value.get("data"))
    if not isinstance(value, str):
        raise RequestError(f"{place}: got {kind_of(value)}, allowed: base64 or a data: URL")
    return Item(kind, place, value)


def _is_of_user(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "user"
