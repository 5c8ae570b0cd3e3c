"""Ends chat templates that take too long or write too much, for every caller of transformers.

How long a template takes is up to the caller: gpt-oss' looks from each call of a tool through all
later messages, half a minute for 8,000 calls.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from ..errors import RequestError

LIMIT_S = 5.0
MOST_CHARACTERS = 64 * 2**20


class _TooMuch(BaseException):
    """No Exception: jinja2 would look for its line in the template, which it may not have."""


def limit_rendering() -> None:
    """Renders chats within the limits from now on, whatever model's they are."""
    from transformers.utils import chat_template_utils

    patched: Any = chat_template_utils
    patched._compile_jinja_template = _limited  # noqa: SLF001


class _Limited:
    """Stands in for a compiled template of jinja2, whose environment it has."""

    def __init__(self, chat_template: str) -> None:
        from transformers.utils.chat_template_utils import _cached_compile_jinja_template

        self._compiled = _cached_compile_jinja_template(chat_template)
        self.environment = self._compiled.environment

    def render(self, **given: Any) -> str:
        """Raises RequestError: it takes too long, or writes too much."""
        pieces, left = list[str](), MOST_CHARACTERS
        try:
            with _ended_after(LIMIT_S):
                for piece in self._compiled.generate(**given):
                    pieces.append(piece)
                    left -= len(piece)
                    if left < 0:
                        raise _TooMuch
        except _TooMuch:
            raise RequestError(
                f"messages: this model's chat template takes more than {LIMIT_S:g} s to render "
                f"them, or writes more than {MOST_CHARACTERS} characters"
            ) from None
        return "".join(pieces)


_limited = lru_cache(_Limited)


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Raises _TooMuch wherever this thread is in Python when the time is up."""
    thread, lock, is_over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False

    def end() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_TooMuch))

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            is_over = True
        timer.cancel()  # where it had raised in this moment, that shows in this call
