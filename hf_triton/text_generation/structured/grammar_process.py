"""Runs in the process of one constraint: makes its grammar and follows outputs by it. All such
processes share llguidance's form of the tokenizer. Imports neither torch nor transformers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import threading
import time
from typing import Any

from msgspec.json import decode

from hf_triton.runtime.errors import RequestError

from .constraint import Constraint
from .llguidance_grammars import make_matcher, refusal_reason

GOES_ON, IS_COMPLETE, MAY_END = b"\0", b"\1", b"\2"  # what a token has led to
OUTPUT = struct.Struct("<Ii")  # its number; the token that it goes on with
_STACK_BYTES = 64 * 2**20
_LONG_S = 0.5  # of CPU time; most grammars take a few milliseconds
_LOOK_S = 0.1
_NICENESS = 10


class _Grammar:
    """The grammar of the constraint, or why there is none, and each output's state."""

    tokenizer: Any
    plain_tokens: dict[str, int]
    first: Any
    first_mask: bytes
    problem: RequestError | None = None
    slot: int  # of the one process that may take long: a file that all have, which it locks

    def __init__(self) -> None:
        self.matchers: dict[int, Any] = {}

    def make(self, constraint: Constraint) -> None:
        try:
            self.first, self.first_mask = make_matcher(
                self.tokenizer, constraint, self.plain_tokens
            )
        except RequestError as error:
            self.problem = error
        except BaseException:  # PyO3's PanicException is not an Exception
            text = f"{constraint.kind}: can't be prepared, allowed: another one"
            self.problem = RequestError(text)


_OWN = _Grammar()


def read_tokenizer(content: bytes) -> None:
    from llguidance import LLTokenizer

    given = json.loads(content)
    _OWN.plain_tokens = given["plain_tokens"]
    _OWN.tokenizer = LLTokenizer(
        given["tokenizer"], n_vocab=given["num_tokens"], eos_token=given["eos_token_ids"] or None
    )
    _OWN.slot = os.memfd_create("slot")


def make(asked: bytes) -> bytes:
    """Makes the grammar of a constraint; returns the state and mask before the first token. A
    thread of its own does so, which gets a low priority if it takes long: on Linux each thread has
    a niceness of its own. Not before, or a busy machine would not let it show how long it takes.
    Raises RequestError; BlockingIOError where another one takes long too.
    """
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=_OWN.make, args=(decode(asked, type=Constraint),))
    thread.start()
    # However busy the machine, the time that it has computed says whether it takes long.
    while thread.is_alive() and time.process_time() < _LONG_S:
        thread.join(_LOOK_S)
    if thread.is_alive():
        fcntl.lockf(_OWN.slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread.native_id or 0, _NICENESS)
        thread.join()
        fcntl.lockf(_OWN.slot, fcntl.LOCK_UN)
    if _OWN.problem is not None:
        raise _OWN.problem
    return _state(_OWN.first) + _OWN.first_mask


def follow(order: bytes) -> bytes:
    """The state after a token. Raises RequestError where it does not fit."""
    number, token_id = OUTPUT.unpack(order)
    matcher = _OWN.matchers.get(number)
    if matcher is None:
        matcher = _OWN.matchers[number] = _OWN.first.deep_copy()
    # llguidance takes an end of the text in states that nothing can follow, though none may come.
    if not matcher.consume_token(token_id) or matcher.is_error():
        raise RequestError(refusal_reason(matcher.stop_reason(), matcher.get_error()))
    return _state(matcher)


def mask(order: bytes) -> bytes:
    found: bytes = _OWN.matchers[OUTPUT.unpack(order)[0]].compute_bitmask()
    return found


def drop(order: bytes) -> bytes:
    _OWN.matchers.pop(OUTPUT.unpack(order)[0], None)
    return b""


def _state(matcher: Any) -> bytes:
    if matcher.is_stopped():
        return IS_COMPLETE
    return MAY_END if matcher.is_accepting() else GOES_ON
