"""Starts the processes in which grammars are made and followed, and talks with them.

The program that forks them starts with the first constraint and makes llguidance's form of the
tokenizer. Knows no grammar library.
"""

from __future__ import annotations

import importlib.util
import json
import threading
import weakref
from collections.abc import Iterable
from copy import copy
from typing import Any

from hf_triton.runtime import log
from hf_triton.runtime.errors import OverloadedError, RequestError, reason
from hf_triton.runtime.sandbox.fork_server import ForkServerError
from hf_triton.runtime.sandbox.pool import Sandbox

from .constraint import Constraint
from .grammar import Following, Limits
from .grammar_process import read_tokenizer
from .plain_tokens import with_plain_tokens

MAX_PROCESSES = 256  # each has 5 MiB from the beginning
MAX_BYTES = 2**30  # beyond that, of all of them


class GrammarProcesses:
    """The processes of one model. ``vocab_size`` is how many logits it has, ``eos_token_ids`` are
    those that end a text; without ``masks`` outputs are only followed.
    """

    def __init__(
        self, tokenizer: Any, vocab_size: int, eos_token_ids: Iterable[int], *, masks: bool = True
    ) -> None:
        self._tokenizer, self._vocab_size, self._masks = tokenizer, vocab_size, masks
        self._eos_token_ids = sorted(eos_token_ids)
        self.limits = Limits()
        self._sandbox = Sandbox(read_tokenizer)
        self._lock = threading.Lock()  # guards what follows
        self._problem, self._closed = "", False
        self._open: weakref.WeakSet[Following] = weakref.WeakSet()

    @property
    def num_bytes(self) -> int:
        """What all processes have told of their memory."""
        return sum(one.num_bytes for one in list(self._open))

    def prepare(self) -> None:
        """Starts the program where it does not run: a tenth of a second, with a large tokenizer
        about a second. Where it can't be, each request is told why.
        """
        with self._lock:
            if self._problem or self._closed or self._sandbox.runs:
                return
            try:
                described = self._described()
            except BaseException as error:  # a tokenizer's panic is not an Exception
                self._problem = _unknown_tokenizer(error)
                return
            if importlib.util.find_spec("llguidance") is None:
                self._problem = (
                    "this server's Python lacks the package llguidance, which it needs; whoever "
                    "runs the server can add it: pip install 'llguidance>=1.7,<2'"
                )
                return
            try:
                self._sandbox.start(described)
            except ForkServerError as error:
                self._problem = str(error) and _unknown_tokenizer(error)
                if not self._problem:
                    log.error("the process that makes grammars does not start")

    def begin(self, constraint: Constraint, time_limit_s: float) -> Following:
        """Begins with a grammar; ``Following.wait`` says when it is made.

        Raises:
            RequestError: this model can have none; names the option.
            OverloadedError: too many are in use.
        """
        self.prepare()
        special_tokens = self._special_tokens(constraint)
        with self._lock:
            if self._problem:
                raise RequestError(f"{constraint.kind}: {self._problem}")
            if len(self._open) >= MAX_PROCESSES:
                raise OverloadedError(
                    f"{len(self._open)} different constraints are in use, allowed: at most "
                    f"{MAX_PROCESSES} at once: try again later"
                )
            following = Following(
                self._sandbox.new_process(),
                constraint,
                special_tokens,
                self.limits,
                self._limit_memory,
                masks=self._masks,
            )
            self._open.add(following)
        following.begin(time_limit_s)
        return following

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._sandbox.close()

    def _limit_memory(self) -> None:
        """Ends the process with the most memory where all together have too much."""
        while self.num_bytes > MAX_BYTES:
            max(list(self._open), key=lambda one: one.num_bytes).end()

    def _described(self) -> bytes:
        """The tokenizer as llguidance takes it (llguidance.hf.from_tokenizer)."""
        backend = copy(self._tokenizer.backend_tokenizer)
        backend.no_padding()
        backend.no_truncation()
        tokenizer, plain_tokens = with_plain_tokens(backend.to_str())
        described = {
            "tokenizer": tokenizer,
            "plain_tokens": plain_tokens,
            "num_tokens": max(self._vocab_size, len(self._tokenizer)),
            "eos_token_ids": self._eos_token_ids or [self._tokenizer.eos_token_id],
        }
        return json.dumps(described).encode()

    def _special_tokens(self, constraint: Constraint) -> dict[int, str]:
        added = self._tokenizer.added_tokens_decoder.items()
        special = {token_id: token.content for token_id, token in added if token.special}
        return {i: t for i, t in special.items() if any(t in one for one in constraint.texts)}


def _unknown_tokenizer(error: BaseException) -> str:
    why = reason(Exception(str(error) or type(error).__name__), 120)
    return (
        "can't be used with this model, whose tokenizer is of a kind that llguidance does not know "
        f"({why})"
    )
