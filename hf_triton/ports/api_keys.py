"""The API keys of the callers, each with its limits: one line of a file for each.

    # name  key                  limits of its own
    alice   8f3c0d3e5a…
    batch   77aa01be9c…          requests_per_minute=600 tokens_per_minute=100000

Keys are in no error and no log.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path

from generator.errors import ServerError
from generator.models_yaml.server_settings import Limits
from hf_triton.ports.settings import Caller
from hf_triton.tritonserver.admin_key import take_secret

VARIABLE = "HF_TRITON_API_KEYS"
_WENT = "HF_TRITON_OPENAI_KEY"  # a key for one port
FLAG = "--api-keys-file"
_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,63})\s+(?P<key>[!-~]{16,256})"
    r"(?P<limits>(\s+((requests_per_minute|concurrent_requests)=([1-9][0-9]{0,5}|1000000)"
    r"|tokens_per_minute=[1-9][0-9]{0,8}))*)"
)
_EXPECTED = (
    "expected a name of letters, digits and . _ -, and a key of 16 to 256 printable ASCII "
    "characters, such as `openssl rand -hex 32` makes; after them, if you like, "
    "requests_per_minute=N, concurrent_requests=N and tokens_per_minute=N, from 1 to 999999999, of "
    "requests to 1000000"
)


def take_api_keys(file: Path | None, environment: MutableMapping[str, str]) -> tuple[Caller, ...]:
    """The callers in ``file``, else in the environment, which loses them; none where neither is
    there. Raises ServerError, which names the line.
    """
    if environment.get(_WENT):
        raise ServerError(f"{_WENT}: it was removed; use {VARIABLE}, whose keys every port takes")
    text, where = take_secret(VARIABLE, FLAG, file, environment)
    return () if text is None else parse(text, where)


def parse(text: str, where: str) -> tuple[Caller, ...]:
    """The callers in ``text``. Raises ServerError, with ``where`` and the line."""
    callers, known = list[Caller](), set[str]()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        found = _LINE.fullmatch(line)
        if found is None:  # not shown: any part of it could be a key
            raise ServerError(f"{where}:{number}: {_EXPECTED}")
        if known & {found["name"], found["key"]}:
            raise ServerError(f"{where}:{number}: got a name or a key for the second time")
        known |= {found["name"], found["key"]}
        limits = {
            key: int(value) for key, value in (one.split("=") for one in found["limits"].split())
        }
        callers.append(Caller(found["name"], found["key"], Limits(**limits) if limits else None))
    if not callers:
        raise ServerError(f"{where}: got no key, expected lines such as 'alice KEY'")
    return tuple(callers)
