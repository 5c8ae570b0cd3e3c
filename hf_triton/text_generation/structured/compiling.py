"""Compiles constraints, each in a process of its own, so that a large one delays its caller alone.

The program that forks these processes starts with the first constraint and makes llguidance's form
of the tokenizer. Three constraints are compiled at a time; of those only one may take more than
half a second of CPU time. The results last used are kept. Knows no grammar library.
"""

from __future__ import annotations

import importlib.util
import json
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from copy import copy
from typing import Any

from hf_triton.runtime import log
from hf_triton.runtime.errors import OverloadedError, RequestError, reason
from hf_triton.runtime.sandbox.pool import ForkServerError, Sandbox

from .constraint import Constraint
from .grammar import WENT_AWAY, Following, busy
from .grammar_process import read_tokenizer
from .llguidance_grammars import with_plain_tokens

MAX_PROCESSES = 256  # each has 5 MiB from the beginning
MAX_BYTES = 2**30  # beyond that, of all of them
_MAX_CONCURRENT = 3
_MAX_KEPT = 32
_MAX_KEPT_BYTES = 256 * 2**20
_MAX_WAITING = 64
_SLACK_S = 1.0  # beyond the limit, in which the kernel ends the process
_UNLOADED = "the model is being unloaded: try again later"

Started = dict[Constraint, Following]
Take = Callable[[Started], None]
Fail = Callable[[Exception], None]


class GrammarProcesses:
    """The processes of one model; without ``masks`` outputs are only followed."""

    def __init__(
        self, tokenizer: Any, vocab_size: int, eos_token_ids: Iterable[int], *, masks: bool = True
    ) -> None:
        self._tokenizer, self._vocab_size, self._masks = tokenizer, vocab_size, masks
        self._eos_token_ids = sorted(eos_token_ids)
        self._sandbox = Sandbox(read_tokenizer)
        self._lock = threading.Lock()  # guards what follows
        self._problem, self._closed = "", False
        self._open: weakref.WeakSet[Following] = weakref.WeakSet()

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for one in list(self._open))

    def prepare(self) -> None:
        """Starts the program where it does not run, which takes up to a second; where it can't be
        started, each request is refused with the reason.
        """
        with self._lock:
            if self._problem or self._closed or self._sandbox.server.runs:
                return
            try:
                described = self._described()
            except BaseException as error:  # a tokenizer's panic is not an Exception
                self._problem = _unknown_tokenizer(error)
                return
            if importlib.util.find_spec("llguidance") is None:
                self._problem = (
                    "the server's Python lacks the package llguidance, which it needs; its "
                    "operator can add it: pip install 'llguidance>=1.7,<2'"
                )
                return
            try:
                self._sandbox.start(described)
            except ForkServerError as error:
                self._problem = str(error) and _unknown_tokenizer(error)
                if not self._problem:
                    log.error("the grammar process does not start")

    def begin(self, constraint: Constraint, time_limit_s: float) -> Following:
        """Begins with a grammar; ``Following.wait`` says when it is made.

        Raises:
            RequestError: this model can have none; names the option.
            OverloadedError: too many are in use.
        """
        self.prepare()
        added = self._tokenizer.added_tokens_decoder.items()
        special_tokens = {
            token_id: token.content
            for token_id, token in added
            if token.special and any(token.content in text for text in constraint.texts)
        }
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
        """Ends the largest process where all together have too much memory."""
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


def _unknown_tokenizer(error: BaseException) -> str:
    why = reason(Exception(str(error) or type(error).__name__), 120)
    return (
        "can't be used with this model, whose tokenizer is of a kind that llguidance does not know "
        f"({why})"
    )


class _TookTooLongError(RequestError):
    """Not kept: the machine may have been busy."""


class Compiler:
    """Compiles constraints, each within ``time_limit_s``."""

    def __init__(self, processes: GrammarProcesses, time_limit_s: float) -> None:
        self._processes, self._time_limit_s = processes, time_limit_s
        self._threads = ThreadPoolExecutor(_MAX_CONCURRENT, thread_name_prefix="grammar")
        self._lock = threading.Lock()  # guards the rest
        self._prepared: OrderedDict[Constraint, Future[Following]] = OrderedDict()
        self._unfinished: set[Future[Following]] = set()
        self._closed = False

    def when_ready(self, constraints: Iterable[Constraint], start: Take, fail: Fail) -> None:
        """Calls ``start``, or ``fail`` with a RequestError or OverloadedError: at once where all
        constraints are known, else from another thread.
        """

        def tell() -> None:
            try:
                # Raised for each request, an error that is kept would keep all of their frames.
                told = [future.exception() for future in futures.values()]
                error = next((one for one in told if isinstance(one, Exception)), None)
            except CancelledError:
                error = OverloadedError(_UNLOADED)
            if error is not None:
                fail(error)
            else:
                start({constraint: future.result() for constraint, future in futures.items()})

        try:
            futures = {constraint: self._future(constraint) for constraint in constraints}
        except OverloadedError as error:
            fail(error)
            return
        _when_all_done(futures.values(), tell)

    def close(self) -> None:
        """Refuses what waits for its turn, and ends the processes."""
        with self._lock:
            self._closed = True
        self._processes.close()
        self._threads.shutdown(cancel_futures=True)
        self._prepared.clear()

    def _future(self, constraint: Constraint) -> Future[Following]:
        with self._lock:
            if self._closed:
                raise OverloadedError(_UNLOADED)
            future = self._prepared.get(constraint)
            if future is None or not _is_worth_keeping(future):
                if len(self._unfinished) >= _MAX_WAITING:
                    raise busy(constraint)
                future = self._prepared[constraint] = self._threads.submit(self._make, constraint)
                self._unfinished.add(future)
                future.add_done_callback(self._unfinished.discard)
            self._prepared.move_to_end(constraint)
            sizes = [_num_bytes(one) for one in self._prepared.values()]
            while len(sizes) > 1 and (len(sizes) > _MAX_KEPT or sum(sizes) > _MAX_KEPT_BYTES):
                self._prepared.popitem(last=False)
                del sizes[0]
            return future

    def _make(self, constraint: Constraint) -> Following:
        compiled = self._processes.begin(constraint, self._time_limit_s)
        try:
            self._wait(constraint, compiled)
        except BaseException:
            compiled.close()  # the error's traceback refers to it
            raise
        return compiled

    def _wait(self, constraint: Constraint, compiled: Following) -> None:
        limit_s, began_s = self._time_limit_s, time.monotonic()
        compiled.wait(limit_s + _SLACK_S)
        if time.monotonic() - began_s >= limit_s:
            raise _TookTooLongError(
                f"{constraint.kind}: takes more than {limit_s:g} s to prepare (max_grammar_s), "
                "allowed: a simpler one"
            )
        if compiled.process.has_ended:
            if self._closed:
                raise OverloadedError(_UNLOADED)
            if compiled.process.was_killed:
                raise OverloadedError(WENT_AWAY)
            raise RequestError(f"{constraint.kind}: too large to prepare, allowed: a smaller one")


def _when_all_done(futures: Iterable[Future[Following]], tell: Callable[[], None]) -> None:
    """Calls ``tell`` when all are done, waiting for one after the other, and forgets it then: a
    future keeps what it has called, and in a cycle only a rare collection would end its process.
    """
    left, to_tell = list(futures), [tell]

    def go_on(_: object) -> None:
        if left:
            left.pop().add_done_callback(go_on)
        else:
            to_tell.pop()()

    go_on(None)


def _is_worth_keeping(future: Future[Following]) -> bool:
    if not future.done():
        return True
    error = future.exception()
    if error is None:
        return future.result().process.is_there
    return isinstance(error, RequestError) and not isinstance(error, _TookTooLongError)


def _num_bytes(future: Future[Following]) -> int:
    is_made = future.done() and future.exception() is None
    return future.result().num_bytes if is_made else 0
