"""The images and sounds of a chat's messages: taken out of them, to be sent as tensors."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hf_triton.ports.openai.schema.body import convert, short
from hf_triton.ports.openai.schema.errors import ApiError, bad_field

# The types of parts that hold a file, and the tensor that it goes to; audio_url is vLLM's.
_TENSORS = {"image_url": "image", "input_audio": "audio", "audio_url": "audio"}
# What the field of a part may have beside the file. It says how carefully to look, or what the file
# says itself, and is not needed.
_BESIDE = ("detail", "format")
PIECE = 1 << 20  # characters; a multiple of 4
_DATA_URL = re.compile(r"data:[\w.+-]*(?:/[\w.+-]*)?(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
# A model's error about an element of a tensor: ``image[1]: the PNG image is cut short``.
_ELEMENT = re.compile(r"(image|audio)\[(\d+)\]")


@dataclass(frozen=True)
class MediaPart:
    tensor: str  # that it goes to
    field: str  # that errors name
    file: bytes = b""
    address: str | None = None  # from where the file is still to be fetched
    of_tool: bool = False  # whether a tool has answered it


def take_media(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Any], tuple[MediaPart, ...]]:
    """Takes the files out of messages: each leaves its type. Raises ApiError, 400."""
    found: list[MediaPart] = []
    taken = []
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            parts = []
            for n, part in enumerate(content):
                of_type = str(part.get("type")) if isinstance(part, dict) else ""
                if of_type in _TENSORS:
                    where = f"messages[{number}].content[{n}].{of_type}"
                    one = _media_part(where, of_type, part.get(of_type))
                    found.append(replace(one, of_tool=message.get("role") == "tool"))
                    part = {"type": one.tensor}
                parts.append(part)
            message = {**message, "content": parts}
        taken.append(message)
    return taken, tuple(found)


def tensors(media: Sequence[MediaPart]) -> dict[str, list[bytes]]:
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
    return MediaPart(tensor, field, decoded_file(field, text, is_url=key == "url"))


def decoded_file(field: str, value: str, *, is_url: bool) -> bytes:
    prefix = _DATA_URL.match(value)
    if is_url and prefix is None:
        raise bad_field(field, "something else", "a data: URL in base64, or an address by http")
    packed = value[prefix.end() :] if prefix else value
    # Piece by piece: nothing else in this process runs during one.
    pieces = (packed[at : at + PIECE] for at in range(0, len(packed), PIECE))
    try:
        if "=" in packed[:-2]:
            raise ValueError("padding before the end")
        file = b"".join(base64.b64decode(piece, validate=True) for piece in pieces)
    except ValueError:
        raise bad_field(field, "something else", "base64") from None
    if not file:
        raise bad_field(field, "an empty file", "an image" if is_url else "a sound")
    return file
