"""Takes a multipart form apart: in one pass over its bytes, because other callers wait meanwhile.

Knows no field. https://www.rfc-editor.org/rfc/rfc7578
"""

from __future__ import annotations

from email.message import Message
from email.parser import BytesHeaderParser

from hf_triton.ports.openai.schema.errors import ApiError

MAX_FIELDS = 32
_MOST_HEAD_BYTES = 4096  # of one field
_LONGEST_BOUNDARY = 70
_END = b"\r\n"
_HEADS = BytesHeaderParser()


def form_fields(content_type: str, data: bytes) -> dict[str, list[bytes]]:
    """The values of each field by its name. Raises ApiError, 400."""
    begins = _END + b"--" + _boundary(content_type)
    _, *parts = (_END + data).split(begins, MAX_FIELDS + 1)
    fields: dict[str, list[bytes]] = {}
    for number, part in enumerate(parts):
        if part.startswith(b"--"):
            return fields
        if number == MAX_FIELDS:
            raise ApiError(400, f"the body: got more fields, allowed: at most {MAX_FIELDS}")
        name, value = _field(part)
        fields.setdefault(name, []).append(value)
    raise _no_form()


def _boundary(content_type: str) -> bytes:
    head = Message()
    head["Content-Type"] = content_type
    boundary = head.get_boundary("")
    if not 1 <= len(boundary) <= _LONGEST_BOUNDARY or not boundary.isascii():
        raise _no_form()
    return boundary.encode()


def _field(part: bytes) -> tuple[str, bytes]:
    """The name and the value of what stands between two boundaries."""
    line, _, rest = part.partition(_END)
    head, ends, value = rest.partition(_END + _END)
    if line.strip() or not ends or len(head) > _MOST_HEAD_BYTES:
        raise _no_form()
    name = _HEADS.parsebytes(head).get_param("name", header="Content-Disposition")
    if not isinstance(name, str):
        raise _no_form()
    return name, value


def _no_form() -> ApiError:
    return ApiError(400, "the body is no multipart form, as its Content-Type says")
