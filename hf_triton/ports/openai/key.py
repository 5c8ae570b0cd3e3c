"""The key that clients must send."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path

import msgspec

from hf_triton.ports.settings import Access, Caller
from hf_triton.tritonserver.admin_key import KeySource

VARIABLE = "HF_TRITON_OPENAI_KEY"
_SOURCE = KeySource(
    VARIABLE,
    "--openai-key-file",
    re.compile(r"[!-~]+"),
    "one word of printable ASCII, or none at all",
)


def take_key(file: Path | None, environment: MutableMapping[str, str]) -> str | None:
    """The key in ``file``, else in the environment, which loses it. Raises ServerError."""
    return _SOURCE.take(file, environment)


def with_key(access: Access, key: str | None) -> Access:
    """``access`` for those too who have the key of this API alone."""
    if key is None:
        return access
    return msgspec.structs.replace(access, callers=(*access.callers, Caller("openai", key)))
