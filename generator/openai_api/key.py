"""The key that clients must send: from the environment or a file, never from the command line,
where everybody on the machine could read it. It is in no log and no error.
"""

from __future__ import annotations

import hmac
from collections.abc import MutableMapping
from pathlib import Path

from generator.errors import ServerError

VARIABLE = "HF_TRITON_OPENAI_KEY"
_SCHEME = "bearer "


def take_key(file: Path | None, environment: MutableMapping[str, str]) -> str | None:
    """The key in ``file``, else in the environment, which loses it: it is none of the models'.

    Raises ServerError for one that can't be read or sent: an empty key protects nothing.
    """
    key = environment.pop(VARIABLE, None)
    where = VARIABLE
    if file is not None:
        where = f"--openai-key-file {file}"
        try:
            key = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text"
            raise ServerError(f"{where}: can't be read: {reason}") from None
    if key is None:
        return None
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ServerError(f"{where}: expected one word of printable ASCII, or none at all")
    return key


def is_authorized(header: str | None, key: str | None) -> bool:
    """Whether an ``Authorization`` header has the key; takes as long for any wrong one."""
    if key is None:
        return True
    given = header or ""
    if given[: len(_SCHEME)].lower() != _SCHEME:
        return False
    token = given[len(_SCHEME) :].strip()
    return hmac.compare_digest(token.encode(errors="surrogateescape"), key.encode())
