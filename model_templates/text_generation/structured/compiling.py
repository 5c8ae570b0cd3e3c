"""Compiles constraints in threads of their own, so that a large one delays its own caller only.

Two are compiled at a time, in threads of low priority; the results last used are cached by content.
Python can't stop a thread: one that takes too long is abandoned, and another one takes its turn, as
long as few are abandoned. Knows no grammar library and no request.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from hf_runtime.errors import OverloadedError, RequestError

from .constraint import Constraint
from .grammar import Grammar

Start = Callable[[], Grammar]
Started = dict[Constraint, Start]
Futures = dict[Constraint, Future[Start]]
Take = Callable[[Started], None]
Fail = Callable[[Exception], None]

_MAX_CONCURRENT = 2
_MAX_ABANDONED = 4
_NICENESS = 10
_MAX_CACHED = 32  # each may grow to about 20 MB of automaton
_MAX_WAITING = 64


class Compiler:
    """Compiles constraints to functions that start a grammar.

    ``time_limit_s`` is how long a request waits for each constraint. ``prepare`` is called before
    each; its time does not count.
    """

    def __init__(
        self,
        prepare: Callable[[], object],
        compile_: Callable[[Constraint], Start],
        time_limit_s: float,
    ) -> None:
        self._prepare, self._compile = prepare, compile_
        self._time_limit_s = time_limit_s
        self._prepared = threading.Event()
        self._turns = threading.Semaphore(_MAX_CONCURRENT)
        self._lock = threading.Lock()  # guards the rest
        self._kept: OrderedDict[Constraint, Future[Start]] = OrderedDict()
        self._unfinished: set[Future[Start]] = set()
        self._abandoned: set[Future[Start]] = set()
        self._waiting: set[threading.Thread] = set()
        self._asking: dict[tuple[Future[Start], ...], list[tuple[Take, Fail]]] = {}
        self._closed = False

    def when_ready(
        self,
        constraints: Iterable[Constraint],
        start: Take,
        fail: Fail,
    ) -> None:
        """Calls ``start`` with all of the constraints, or ``fail``: at once where they are known,
        else from another thread.

        ``fail`` gets a RequestError that names the option, or OverloadedError.
        """
        try:
            futures = {constraint: self._future(constraint) for constraint in constraints}
        except OverloadedError as error:
            fail(error)
            return
        if all(future.done() for future in futures.values()):
            _tell(self._outcome(futures), start, fail)
        else:
            self._wait_in_thread(futures, start, fail)

    def close(self) -> None:
        """Refuses what waits for its turn; what is being compiled may end within its time limit."""
        with self._lock:
            self._closed = True
            unfinished, waiting = list(self._unfinished), list(self._waiting)
        for future in unfinished:
            future.cancel()
            self._turns.release()
        for thread in waiting:
            thread.join()

    def _future(self, constraint: Constraint) -> Future[Start]:
        with self._lock:
            if self._closed:
                raise OverloadedError("the model is being unloaded: try again later")
            future = self._kept.get(constraint)
            if future is None or future.cancelled():
                if len(self._unfinished) >= _MAX_WAITING:
                    raise _busy(constraint)
                future = self._kept[constraint] = Future()
                self._unfinished.add(future)
                threading.Thread(
                    target=self._run, args=(constraint, future), name="grammar", daemon=True
                ).start()
            self._kept.move_to_end(constraint)
            while len(self._kept) > _MAX_CACHED:
                self._kept.popitem(last=False)
            return future

    def _run(self, constraint: Constraint, future: Future[Start]) -> None:
        _lower_priority()
        self._prepare()
        self._prepared.set()
        self._turns.acquire()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(self._compile(constraint))
            except BaseException as error:  # PyO3's PanicException is not an Exception
                failed = error if isinstance(error, Exception) else _broken(constraint)
                future.set_exception(failed)
        with self._lock:
            self._unfinished.discard(future)
            was_abandoned = future in self._abandoned
            self._abandoned.discard(future)
        if not was_abandoned:
            self._turns.release()

    def _wait_in_thread(self, futures: Futures, start: Take, fail: Fail) -> None:
        """Waits in another thread, one for all requests that wait for the same constraints."""
        key = tuple(futures.values())

        def wait() -> None:
            outcome = self._outcome(futures)
            with self._lock:
                asking = self._asking.pop(key)
            try:
                for one in asking:
                    _tell(outcome, *one)
            finally:
                with self._lock:
                    self._waiting.discard(thread)

        thread = threading.Thread(target=wait, name="grammar-wait", daemon=True)
        with self._lock:
            is_first = key not in self._asking
            is_full = is_first and len(self._waiting) >= _MAX_WAITING
            if not is_full:
                self._asking.setdefault(key, []).append((start, fail))
                if is_first:
                    self._waiting.add(thread)
                    thread.start()
        if is_full:
            fail(_busy(next(iter(futures))))

    def _outcome(self, futures: Futures) -> Started | Exception:
        try:
            return {constraint: self._result(constraint, f) for constraint, f in futures.items()}
        except Exception as error:  # told to whoever asks
            return error

    def _result(self, constraint: Constraint, future: Future[Start]) -> Start:
        self._prepared.wait()
        try:
            return future.result(self._time_limit_s)
        except CancelledError:  # by another that waited for the same, or by close()
            raise _busy(constraint) from None
        except FutureTimeoutError:
            if future.cancel():  # it was not even begun
                raise _busy(constraint) from None
            self._abandon(future)
            raise RequestError(
                f"{constraint.kind}: takes more than {self._time_limit_s:g} s to prepare "
                "(max_grammar_s), allowed: a simpler one"
            ) from None

    def _abandon(self, future: Future[Start]) -> None:
        """Gives the turn of one that takes too long to another."""
        with self._lock:
            abandons = future in self._unfinished and future not in self._abandoned
            abandons = abandons and len(self._abandoned) < _MAX_ABANDONED
            if abandons:
                self._abandoned.add(future)
        if abandons:
            self._turns.release()


def _tell(outcome: Started | Exception, start: Take, fail: Fail) -> None:
    if isinstance(outcome, Exception):
        fail(outcome)
    else:
        start(outcome)


def _busy(constraint: Constraint) -> OverloadedError:
    return OverloadedError(f"too many of {constraint.kind} are being prepared: try again later")


def _broken(constraint: Constraint) -> RequestError:
    return RequestError(f"{constraint.kind}: can't be prepared, allowed: another one")


def _lower_priority() -> None:
    """Lets the engine's thread run first: on Linux each thread has a niceness of its own."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
