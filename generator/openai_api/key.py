"""The key that clients must send."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import MutableMapping
from pathlib import Path

from generator.server.admin_key import KeySource

VARIABLE = "HF_TRITON_OPENAI_KEY"
_SCHEME = "bearer "
_SOURCE = KeySource(
    VARIABLE,
    "--openai-key-file",
    re.compile(r"[!-~]+"),
    "one word of printable ASCII, or none at all",
)


def take_key(file: Path | None, environment: MutableMapping[str, str]) -> str | None:
    """The key in ``file``, else in the environment, which loses it. Raises ServerError."""
    return _SOURCE.take(file, environment)


def caller_of(key: str) -> str:
    """The name by which a model keeps those who have this key apart from others; it does not tell
    the key.
    """
    return hashlib.sha256(b"caller " + key.encode()).hexdigest()[:32]


def is_authorized(header: str | None, key: str | None) -> bool:
    """Whether an ``Authorization`` header has the key; takes as long for any wrong one."""
    if key is None:
        return True
    given = header or ""
    if given[: len(_SCHEME)].lower() != _SCHEME:
        return False
    token = given[len(_SCHEME) :].strip()
    return hmac.compare_digest(token.encode(errors="surrogateescape"), key.encode())
