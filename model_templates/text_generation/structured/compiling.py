"""Compiles constraints beside the engine, so that a large one holds up nobody but its own caller.

Two at a time, in threads of low priority; what they made is kept by content, the latest used few.
A thread can't be stopped: one that takes too long is left to itself, and another may take its
place, as long as few are. Knows no grammar library and no request.
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

_AT_ONCE = 2
_MOST_LEFT = 4
_NICENESS = 10
_MOST_KEPT = 32  # each may grow to about 20 MB of automaton
_MOST_WAITING = 64


class Compiler:
    """Constraints to functions that start a grammar. ``close`` ends what waits.

    ``time_limit_s`` is how long a request waits for each that it needs. ``prepare`` is done before
    the first, in its own time; it may be called again.
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
        self._turns = threading.Semaphore(_AT_ONCE)
        self._lock = threading.Lock()  # guards the rest
        self._kept: OrderedDict[Constraint, Future[Start]] = OrderedDict()
        self._unfinished: set[Future[Start]] = set()
        self._left: set[Future[Start]] = set()
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
            self._wait_beside(futures, start, fail)

    def close(self) -> None:
        """Refuses what waits for its turn; what is being compiled has its time limit to end."""
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
                if len(self._unfinished) >= _MOST_WAITING:
                    raise _busy(constraint)
                future = self._kept[constraint] = Future()
                self._unfinished.add(future)
                threading.Thread(
                    target=self._run, args=(constraint, future), name="grammar", daemon=True
                ).start()
            self._kept.move_to_end(constraint)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
            return future

    def _run(self, constraint: Constraint, future: Future[Start]) -> None:
        _give_way()
        self._prepare()
        self._prepared.set()
        self._turns.acquire()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(self._compile(constraint))
            except BaseException as error:  # a panic of the library is none of Exception
                failed = error if isinstance(error, Exception) else _broken(constraint)
                future.set_exception(failed)
        with self._lock:
            self._unfinished.discard(future)
            was_left = future in self._left
            self._left.discard(future)
        if not was_left:
            self._turns.release()

    def _wait_beside(self, futures: Futures, start: Take, fail: Fail) -> None:
        """However many ask for the same, they wait in one thread."""
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
            is_full = is_first and len(self._waiting) >= _MOST_WAITING
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
            self._leave(future)
            raise RequestError(
                f"{constraint.kind}: takes more than {self._time_limit_s:g} s to prepare "
                "(max_grammar_s), allowed: a simpler one"
            ) from None

    def _leave(self, future: Future[Start]) -> None:
        """Lets another have the turn of one that takes too long."""
        with self._lock:
            leaves = future in self._unfinished and future not in self._left
            leaves = leaves and len(self._left) < _MOST_LEFT
            if leaves:
                self._left.add(future)
        if leaves:
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


def _give_way() -> None:
    """Lets the engine's thread go first: on Linux a thread has a priority of its own."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
