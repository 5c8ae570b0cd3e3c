"""The key to what changes a running server: loading models, shared memory, tracing, logging.

Given by whoever starts ``serve``, else a new one for every start. Knows no server.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import MutableMapping
from pathlib import Path

from generator.key_source import KeySource

VARIABLE = "HF_TRITON_ADMIN_KEY"
FLAG = "--admin-key-file"
_NUM_RANDOM_BYTES = 32
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
    """One that nobody can guess."""
    return secrets.token_urlsafe(_NUM_RANDOM_BYTES)
