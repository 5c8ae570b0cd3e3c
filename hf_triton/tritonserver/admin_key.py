"""The admin key, without which nobody may load models or change shared memory, tracing or logging
of a running server. Given when ``serve`` is started, else new for every start.

A key is taken from a file or the environment, never the command line, where everybody on the
machine could read it. It is in no log and no error. Knows no server.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import MutableMapping
from pathlib import Path

from generator.errors import ServerError
from hf_triton.runtime.regular_file import read_regular

VARIABLE = "HF_TRITON_ADMIN_KEY"
FLAG = "--admin-key-file"
_MAX_BYTES = 2**16
_NUM_RANDOM_BYTES = 32
# The characters of base64, hex and UUIDs. Shorter keys could be guessed.
_KEY = re.compile(r"[A-Za-z0-9._~+/=-]{16,256}")


def take_secret(
    variable: str, flag: str, file: Path | None, environment: MutableMapping[str, str]
) -> tuple[str | None, str]:
    """The text in the ``file`` that ``flag`` names, else of the ``variable``, and which it is of.
    The environment loses it: it is none of the models'. Raises ServerError.
    """
    text = environment.pop(variable, None)
    if file is None:
        return text, variable
    try:
        return read_regular(file, _MAX_BYTES).decode("utf-8"), f"{flag} {file}"
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise ServerError(f"{flag} {file}: can't be read: {reason}") from None


def take_admin_key(file: Path | None, environment: MutableMapping[str, str]) -> str:
    """The key that was given, else a new random one. Raises ServerError for one that can't
    be read or is too easily guessed: an empty key protects nothing.
    """
    key, where = take_secret(VARIABLE, FLAG, file, environment)
    if key is None:
        return secrets.token_urlsafe(_NUM_RANDOM_BYTES)
    key = key.strip()
    if not _KEY.fullmatch(key):
        raise ServerError(
            f"{where}: expected one word of 16 to 256 letters, digits and . _ ~ + / = -, such as "
            "`openssl rand -hex 32` makes"
        )
    return key
