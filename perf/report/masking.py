"""Takes what is secret out of texts that are kept: commands, errors, notes."""

from __future__ import annotations

import re
from typing import Any

from generator.errors import mask_tokens

_MASK = "***"
_PATTERNS = (
    (re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)"), rf"\1{_MASK}"),  # a password in a URL
    (re.compile(r"(\bBearer\s+)[^\s'\"]+", re.I), rf"\1{_MASK}"),
    (
        re.compile(r"(--[\w-]*(?:key|token|password|secret)(?:=|\s+))('[^']*'|\"[^\"]*\"|\S+)"),
        rf"\1{_MASK}",
    ),
    (re.compile(r"(\b[\w-]*(?:admin|api)-key:\s*)[^\s'\"]+", re.I), rf"\1{_MASK}"),
)


def masked(value: Any) -> Any:
    """A JSON value with the secrets in its texts replaced by ``***``."""
    if isinstance(value, str):
        return _masked_text(value)
    if isinstance(value, dict):
        return {name: masked(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [masked(each) for each in value]
    return value


def _masked_text(text: str) -> str:
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return mask_tokens(text)
