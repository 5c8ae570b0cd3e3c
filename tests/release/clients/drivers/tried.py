"""Prints what drivers tried: one line of JSON for each thing.

Runs in each client's own environment, so it imports nothing but Python's own modules. The
server's address is in the environment: OPENAI_BASE_URL and the like, as the clients read it.
"""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from collections.abc import Iterator
from typing import Any

PROMPT = "How can you be"
SAID = "Hello, how are you?"  # to the model ``chat``
EXPECTED = os.environ["EXPECTED"]  # what the model itself writes after PROMPT: 12 tokens, greedy
SERVER = os.environ["SERVER"]  # http://host:port of OpenAI's API


@contextlib.contextmanager
def tried(name: str) -> Iterator[None]:
    """Tells whether what is inside went without an error."""
    detail = ""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever a client raises is what is told
        line = traceback.extract_tb(error.__traceback__)[-1].line
        detail = f"{type(error).__name__}: {error} at `{line}`"
    print(json.dumps({"name": name, "ok": not detail, "detail": detail[-3000:]}), flush=True)


@contextlib.contextmanager
def raises(kind: type[Exception], *said: str) -> Iterator[None]:
    """Fails unless its block raises this error, with these words in it."""
    try:
        yield
    except kind as error:
        if not all(word in f"{error} {vars(error)}" for word in said):
            raise
    else:
        raise AssertionError(f"no {kind.__name__}")


def joined(pieces: Iterator[Any]) -> str:
    """The text of a stream that came in more than one piece."""
    texts = [piece for piece in pieces if piece]
    assert len(texts) > 1, texts
    return "".join(texts)
