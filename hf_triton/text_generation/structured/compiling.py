"""Has constraints compiled, so that a large one delays its own caller only.

Each is compiled in a process of its own, which ends when it takes too long. Three are compiled at a
time; of those only one may take long, so that others get their turn. The results last used are kept
by content. Knows no grammar library and no request.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial

from hf_triton.runtime.errors import OverloadedError, RequestError

from .constraint import Constraint
from .grammar import Following
from .grammar_processes import GrammarProcesses

_MAX_CONCURRENT = 3
_MAX_LONG = 1
_MAX_KEPT = 32
_MAX_KEPT_BYTES = 256 * 2**20
_MAX_WAITING = 64
_SLACK_S = 1.0  # beyond the limit, in which the kernel ends the process


Started = dict[Constraint, Following]
Futures = dict[Constraint, Future[Following]]
Take = Callable[[Started], None]
Fail = Callable[[Exception], None]


class _TookTooLongError(RequestError):
    """Not kept: the machine may have been busy."""


class Compiler:
    """Compiles constraints to what starts a grammar; each within ``time_limit_s``, for which the
    time of ``prepare`` does not count.
    """

    def __init__(self, processes: GrammarProcesses, time_limit_s: float) -> None:
        self._processes, self._time_limit_s = processes, time_limit_s
        self._threads = ThreadPoolExecutor(_MAX_CONCURRENT, thread_name_prefix="grammar")
        self._long = threading.Semaphore(_MAX_LONG)
        self._lock = threading.Lock()  # guards the rest
        self._kept: OrderedDict[Constraint, Future[Following]] = OrderedDict()
        self._unfinished: set[Future[Following]] = set()
        self._closed = False

    def when_ready(self, constraints: Iterable[Constraint], start: Take, fail: Fail) -> None:
        """Calls ``start`` with all of the constraints, or ``fail``: at once where they are known,
        else from another thread.

        ``fail`` gets a RequestError that names the option, or OverloadedError.
        """
        try:
            futures = {constraint: self._future(constraint) for constraint in constraints}
        except OverloadedError as error:
            fail(error)
            return
        _when_all_done(futures, partial(_tell, futures, start, fail))

    def close(self) -> None:
        """Refuses what waits for its turn, and ends the processes."""
        with self._lock:
            self._closed = True
        self._processes.close()
        self._threads.shutdown(cancel_futures=True)
        self._kept.clear()

    def _future(self, constraint: Constraint) -> Future[Following]:
        with self._lock:
            if self._closed:
                raise OverloadedError("the model is being unloaded: try again later")
            future = self._kept.get(constraint)
            if future is None or not _is_worth_keeping(future):
                if len(self._unfinished) >= _MAX_WAITING:
                    raise _busy(constraint)
                future = self._kept[constraint] = self._threads.submit(self._make, constraint)
                self._unfinished.add(future)
                future.add_done_callback(self._unfinished.discard)
            self._kept.move_to_end(constraint)
            self._forget()
            return future

    def _forget(self) -> None:
        """Forgets the least used of those kept, where they are too many or too large."""
        sizes = {constraint: _num_bytes(future) for constraint, future in self._kept.items()}
        while len(sizes) > 1 and (len(sizes) > _MAX_KEPT or sum(sizes.values()) > _MAX_KEPT_BYTES):
            constraint, _ = self._kept.popitem(last=False)
            del sizes[constraint]

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
        if not compiled.wait(limit_s, for_all=False):
            if not self._long.acquire(blocking=False):
                raise _busy(constraint)
            try:
                compiled.wait(limit_s + _SLACK_S)
            finally:
                self._long.release()
        if time.monotonic() - began_s >= limit_s:
            raise _TookTooLongError(
                f"{constraint.kind}: takes more than {limit_s:g} s to prepare (max_grammar_s), "
                "allowed: a simpler one"
            )
        if compiled.has_ended:
            if self._closed:
                raise _busy(constraint)
            raise RequestError(f"{constraint.kind}: too large to prepare, allowed: a smaller one")


def _when_all_done(futures: Futures, tell: Callable[[], None]) -> None:
    """Calls ``tell`` once, when the last of them is done; keeps it no longer: a future keeps
    what it has called, and if that led back to it, only a rare collection would end its process.
    """
    left, to_tell = set(futures.values()), [tell]
    lock = threading.Lock()

    def done(future: Future[Following]) -> None:
        with lock:
            left.discard(future)
            is_last = not left
        if is_last:
            to_tell.pop()()

    for future in list(left):
        future.add_done_callback(done)


def _tell(futures: Futures, start: Take, fail: Fail) -> None:
    compiled: Started = {}
    for constraint, future in futures.items():
        try:
            compiled[constraint] = future.result()
        except CancelledError:
            fail(_busy(constraint))
            return
        except Exception as error:
            fail(error)
            return
    start(compiled)


def _is_worth_keeping(future: Future[Following]) -> bool:
    if not future.done():
        return True
    if future.cancelled():
        return False
    error = future.exception()
    if error is not None:
        return isinstance(error, RequestError) and not isinstance(error, _TookTooLongError)
    return future.result().is_usable


def _num_bytes(future: Future[Following]) -> int:
    if not future.done() or future.cancelled() or future.exception() is not None:
        return 0
    return future.result().num_bytes


def _busy(constraint: Constraint) -> OverloadedError:
    return OverloadedError(f"too many of {constraint.kind} are being prepared: try again later")
