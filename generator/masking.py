"""Takes secrets out of what is passed on: the admin key, and tokens of the Hub."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MASK = "***"
_VARIABLES = ("HF_TOKEN", "PRIVATE_REPO_TOKEN", "HUGGING_FACE_HUB_TOKEN")
# A whole one: what only begins like it may be a module of ours, hf_runtime.
_TOKEN = re.compile(r"\b(hf|api_org)_[A-Za-z0-9]{30,}")
_SHORTEST = 8  # a shorter one would take words out of the log


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """The values that no line may hold."""
    values = (environment.get(name, "").strip() for name in _VARIABLES)
    return [value for value in values if len(value) >= _SHORTEST]


def mask(text: str, secrets: Iterable[str]) -> str:
    """``text`` without them, and without what is a token of the Hub by its looks."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, MASK)
    return _TOKEN.sub(rf"\1_{MASK}", text)
