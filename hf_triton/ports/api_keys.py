"""The API keys of the callers, each with its limits: one line of a file for each.

    # name  key                  limits of its own
    alice   8f3c0d3e5a…
    batch   77aa01be9c…          requests_per_minute=600 concurrent_requests=8

Keys are in no error and no log.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path

from generator.errors import ServerError
from generator.spec.access import Limits
from hf_triton.ports.settings import Caller
from hf_triton.tritonserver.admin_key import KeySource

VARIABLE = "HF_TRITON_API_KEYS"
_WENT = "HF_TRITON_OPENAI_KEY"  # a key for one port
FLAG = "--api-keys-file"
_SOURCE = KeySource(VARIABLE, FLAG, re.compile(r".*", re.DOTALL), "lines of names and keys")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"[!-~]{16,256}")
_LIMITS = ("requests_per_minute", "concurrent_requests")
_MOST = 1_000_000


def take_api_keys(file: Path | None, environment: MutableMapping[str, str]) -> tuple[Caller, ...]:
    """The callers in ``file``, else in the environment, which loses them; none where neither is
    there. Raises ServerError, which names the line.
    """
    if environment.get(_WENT):
        raise ServerError(f"{_WENT}: it went; use {VARIABLE}, whose keys every port takes")
    text = _SOURCE.take(file, environment)
    return () if text is None else parse(text, f"{FLAG} {file}" if file else VARIABLE)


def parse(text: str, where: str) -> tuple[Caller, ...]:
    """The callers in ``text``. Raises ServerError, with ``where`` and the line."""
    callers, known = list[Caller](), set[str]()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        caller = _caller(words, f"{where}:{number}")
        if known & {caller.name, caller.key}:
            raise ServerError(f"{where}:{number}: got a name or a key for the second time")
        known |= {caller.name, caller.key}
        callers.append(caller)
    if not callers:
        raise ServerError(f"{where}: got no key, expected lines such as 'alice KEY'")
    return tuple(callers)


def _caller(words: list[str], where: str) -> Caller:
    name, *rest = words
    if not _NAME.fullmatch(name):
        raise ServerError(
            f"{where}: expected a name first, of 1 to 64 letters, digits and . _ -, then its key"
        )
    if not rest or not _KEY.fullmatch(rest[0]):
        raise ServerError(
            f"{where}: {name}: expected a key of 16 to 256 printable ASCII characters after the "
            "name, such as `openssl rand -hex 32` makes"
        )
    limits = dict(_limit(word, f"{where}: {name}") for word in rest[1:])
    return Caller(name, rest[0], Limits(**limits) if limits else None)


def _limit(word: str, where: str) -> tuple[str, int]:
    key, _, value = word.partition("=")
    if key not in _LIMITS:  # not shown: it could be a key with a space in it
        raise ServerError(f"{where}: expected {' or '.join(f'{name}=N' for name in _LIMITS)}")
    if not (value.isdecimal() and len(value) < 8 and 1 <= int(value) <= _MOST):
        raise ServerError(f"{where}: {key}: expected a whole number from 1 to {_MOST}")
    return key, int(value)
