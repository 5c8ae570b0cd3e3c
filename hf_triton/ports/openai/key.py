"""The key that clients of OpenAI's API may send, and no others."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path

from hf_triton.ports.settings import Caller
from hf_triton.tritonserver.admin_key import KeySource

VARIABLE = "HF_TRITON_OPENAI_KEY"
_SOURCE = KeySource(
    VARIABLE,
    "--openai-key-file",
    re.compile(r"[!-~]+"),
    "one word of printable ASCII, or none at all",
)


def take_key(file: Path | None, environment: MutableMapping[str, str]) -> Caller | None:
    """Who has the key in ``file``, else in the environment, which loses it; None without a key.
    Raises ServerError.
    """
    key = _SOURCE.take(file, environment)
    return None if key is None else Caller("openai", key)
