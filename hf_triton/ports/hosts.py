"""What a Host header may say: https://www.rfc-editor.org/rfc/rfc9112#section-3.2."""

from __future__ import annotations

import re

_HOST = re.compile(rb"(?:\[[0-9a-fA-F:.]+\]|[\w.~!$&'()*+,;=%-]*)(?::\d*)?")
WRONG_HOST = "got a host that is none, allowed: NAME or NAME:PORT"


def is_host(value: bytes) -> bool:
    """Whether it is a host, with a port or without; nothing is one too."""
    return _HOST.fullmatch(value) is not None
