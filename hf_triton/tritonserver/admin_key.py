"""The admin key, without which nobody may load models or change shared memory, tracing or logging
of a running server. Given when ``serve`` is started, else new for every start.

A key is taken from a file or the environment, never the command line, where everybody on the
machine could read it. It is in no log and no error. Knows no server.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from generator.errors import ServerError
from hf_triton.runtime.regular_file import read_regular

VARIABLE = "HF_TRITON_ADMIN_KEY"
FLAG = "--admin-key-file"
_MAX_BYTES = 2**16
_NUM_RANDOM_BYTES = 32


@dataclass(frozen=True)
class KeySource:
    """The environment's ``variable``, over which a file that ``flag`` names wins. ``pattern`` is
    what the whole key must match, and ``expected`` says so.
    """

    variable: str
    flag: str
    pattern: re.Pattern[str]
    expected: str

    def take(self, file: Path | None, environment: MutableMapping[str, str]) -> str | None:
        """The key in ``file``, else in the environment, which loses it: it is none of the models'.

        Raises ServerError for one that can't be read or sent: an empty key protects nothing.
        """
        key, where = environment.pop(self.variable, None), self.variable
        if file is not None:
            where = f"{self.flag} {file}"
            try:
                key = read_regular(file, _MAX_BYTES).decode("utf-8")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not a text"
                raise ServerError(f"{where}: can't be read: {reason}") from None
        if key is None:
            return None
        key = key.strip()
        if not self.pattern.fullmatch(key):
            raise ServerError(f"{where}: expected {self.expected}")
        return key


# What base64, hex and UUIDs are written in, of which nothing parts the values of Triton's flag.
# Shorter ones could be guessed, and masking them would take words out of the log.
_SOURCE = KeySource(
    VARIABLE,
    FLAG,
    re.compile(r"[A-Za-z0-9._~+/=-]{16,256}"),
    "one word of 16 to 256 letters, digits and . _ ~ + / = -, such as `openssl rand -hex 32` makes",
)


def take_admin_key(file: Path | None, environment: MutableMapping[str, str]) -> str | None:
    """The key that was given, None where none was. Raises ServerError."""
    return _SOURCE.take(file, environment)


def new_admin_key() -> str:
    return secrets.token_urlsafe(_NUM_RANDOM_BYTES)
