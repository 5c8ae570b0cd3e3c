"""JSON as it stands in generated files."""

from __future__ import annotations

import json

import msgspec


def json_bytes(values: object) -> bytes:
    """The values, keys sorted, as a file."""
    written = json.dumps(values, sort_keys=True, allow_nan=False)
    return (msgspec.json.format(written) + "\n").encode()  # json indents in Python
