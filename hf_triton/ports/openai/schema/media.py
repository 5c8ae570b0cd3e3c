"""The images and sounds of a chat's messages: taken out of them, to be sent as tensors."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hf_triton.ports.openai.schema.body import convert
from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.schema.json_body import short

# The types of parts that hold a file, and the tensor that it goes to; audio_url is vLLM's.
_TENSORS = {"image_url": "image", "input_audio": "audio", "audio_url": "audio"}
# What the field of a part may have beside the file. It says how carefully to look, or what the file
# says itself, and is not needed.
_BESIDE = ("detail", "format")
_PIECE = 1 << 20  # characters; a multiple of 4
_DATA_URL = re.compile(r"data:[\w.+-]*(?:/[\w.+-]*)?(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
# A model's error about an element of a tensor: ``image[1]: the PNG image is cut short``.
_ELEMENT = re.compile(r"(image|audio)\[(\d+)\]")


@dataclass(frozen=True)
class MediaPart:
    """A part of a message: the ``tensor`` that it goes to, the ``field`` that errors name, and a
    file; or an ``address``, from where the file is still to be fetched. ``of_tool`` where a tool
    has answered it.
    """

    tensor: str
    field: str
    file: bytes = b""
    address: str | None = None
    of_tool: bool = False


def take_media(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Any], tuple[MediaPart, ...]]:
    """The messages with ``{"type": "image"}`` or ``audio`` for each of their files, and these in
    order. Raises ApiError, 400, for what holds no file.
    """
    found: list[MediaPart] = []

    def without_file(field: str, part: Any, *, of_tool: bool) -> Any:
        of_type = str(part.get("type")) if isinstance(part, dict) else ""
        if of_type not in _TENSORS:
            return part
        one = _media_part(f"{field}.{of_type}", of_type, part.get(of_type))
        found.append(replace(one, of_tool=of_tool))
        return {"type": found[-1].tensor}

    taken = []
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            where = f"messages[{number}].content"
            of_tool = message.get("role") == "tool"
            parts = [
                without_file(f"{where}[{n}]", part, of_tool=of_tool)
                for n, part in enumerate(content)
            ]
            message = {**message, "content": parts}
        taken.append(message)
    return taken, tuple(found)


def tensors(media: Sequence[MediaPart]) -> dict[str, list[bytes]]:
    """The files by the tensor that they go to."""
    names = {part.tensor for part in media}
    return {name: [part.file for part in media if part.tensor == name] for name in sorted(names)}


def with_places(error: ApiError, media: Sequence[MediaPart]) -> ApiError:
    """A model's error about an element of a tensor as one about the part of the message."""
    element = _ELEMENT.match(error.message)
    if not media or element is None:
        return error
    fields = [part.field for part in media if part.tensor == element[1]]
    if int(element[2]) >= len(fields):
        return error
    field = fields[int(element[2])]
    return replace(error, message=field + error.message[element.end() :], param=field)


def _media_part(field: str, of_type: str, value: Any) -> MediaPart:
    tensor = _TENSORS[of_type]
    key = "data" if of_type == "input_audio" else "url"
    if isinstance(value, Mapping):
        unknown = next((name for name in value if name not in (key, *_BESIDE)), None)
        if unknown is not None:
            raise ApiError(400, f"{field}: {short(unknown)}: unknown field", field)
        value = value.get(key)
        field = f"{field}.{key}"
    text: str = convert(str, value, field)
    if key == "url" and _ADDRESS.match(text):
        return MediaPart(tensor, field, address=text)
    return MediaPart(tensor, field, _file(field, text, is_url=key == "url"))


def _unpacked(packed: str) -> bytes:
    """Base64 decoded piece by piece: nothing else in this process runs during one. Raises
    ValueError.
    """
    if "=" in packed[:-2]:
        raise ValueError("padding before the end")
    pieces = range(0, len(packed), _PIECE)
    return b"".join(base64.b64decode(packed[at : at + _PIECE], validate=True) for at in pieces)


def _file(field: str, value: str, *, is_url: bool) -> bytes:
    prefix = _DATA_URL.match(value)
    if is_url and prefix is None:
        raise bad_field(field, "something else", "a data: URL in base64, or an address by http")
    packed = value[prefix.end() :] if prefix else value
    try:
        file = _unpacked(packed)
    except ValueError:
        raise bad_field(field, "something else", "base64") from None
    if not file:
        raise bad_field(field, "an empty file", "an image" if is_url else "a sound")
    return file
