"""The vllm engine: every sequence is a request to vLLM. The engine's thread runs an event loop
while there is work: a step lasts from one output of vLLM's to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import repeat
from typing import Any

from hf_triton.runtime import log
from hf_triton.runtime.errors import EngineError, OverloadedError, RequestError, place, reason
from hf_triton.text_generation.engine.engine import Engine, EngineSetup, T
from hf_triton.text_generation.sequence.sequence import Sequence, TokenLogprobs

from .arguments import AdapterFile
from .client import AsyncVllm, Count
from .sampling import require_known, token_logprobs

LOOK_EVERY_S = 1.0
_CLOSING_S = 1.0
_CANNOT_HOLD = "vLLM can't enforce it, allowed: a simpler one"


# Awaits an AsyncVllm, or what stands for one in tests.
Start = Callable[[Count], Awaitable[Any]]


class VllmEngine(Engine):
    name = "vllm"
    _vllm: AsyncVllm

    def __init__(
        self,
        setup: EngineSetup,
        start: Start,
        end_process: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        """``end_process`` ends the model's process once vLLM's has died, so that it is started
        again.
        """
        super().__init__(setup)
        self.thread.on_news = self._interrupt
        self._start_vllm, self._end_process = start, end_process
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news_event = asyncio.Event()
        self._tasks: dict[Sequence, asyncio.Task[None]] = {}
        self._updated: dict[Sequence, None] = {}  # those with news, in order
        self._num_running, self._cache_usage = 0, 0.0
        self._beside: Future[Any] | None = None  # vLLM's work beside requests
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="vllm watch", daemon=True)

    @property
    def gauges(self) -> dict[str, int]:
        num_unfinished = self.thread.num_unfinished
        num_running = min(self._num_running, num_unfinished)
        num_tokens = self._vllm.num_cache_tokens
        return {
            "num_running": num_running,
            "num_waiting": num_unfinished - num_running,
            "kv_slots": self.max_num_seqs,
            "kv_slots_used": num_running,
            "kv_tokens": num_tokens,
            "kv_tokens_used": round(self._cache_usage * num_tokens) if num_unfinished else 0,
        }

    @property
    def adapters(self) -> Mapping[str, int]:
        return self._vllm.adapter_keys

    @property
    def is_healthy(self) -> bool:
        return super().is_healthy and not self._vllm.is_dead

    def start(self) -> None:
        super().start()
        self._watcher.start()

    def stop(self, grace_s: float = 0.0) -> None:
        self._stopping.set()
        super().stop(grace_s)

    def submit(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            require_known(sequence.params)
            if sequence.priority:
                raise RequestError(
                    f"priority: got {sequence.priority}, allowed: 0 (engine vllm has no priorities)"
                )
        super().submit(sequences)

    def change_adapters(self, adapters: list[AdapterFile]) -> None:
        """Serves these from now on, and waits for that; running sequences keep the adapters that
        they began with. Called by one thread. Raises LoadError where vLLM can't take one,
        OverloadedError where the engine stops or hangs: then nothing is changed.
        """
        found = self._run(self._vllm.read(adapters))
        self.between_steps(partial(self._vllm.name_adapters, found))

    def forget_removed_adapters(self) -> None:
        """Frees removed adapters that no sequence needs; called as ``change_adapters`` is."""
        used = self.used_adapters
        if not self._vllm.removed_adapters <= used:
            self._run(self._vllm.forget(used))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, which vLLM does beside what it computes. Raises OverloadedError
        where the engine stops or hangs: then it is cancelled.
        """
        assert self._loop is not None
        with self.thread.condition:
            try:
                self.thread.check_running()
            except OverloadedError:
                work.close()
                raise
            done: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._beside = done
            self.thread.wake()
        done.add_done_callback(lambda _: self._interrupt())
        return self._wait_for(done)

    def _chunked_prefill(self, *, with_source: bool) -> bool:
        return True

    def _interrupt(self) -> None:
        """Wakes a step that waits."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # closed: the thread has ended
                self._loop.call_soon_threadsafe(self._news_event.set)

    def prepare(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._vllm = vllm = self._loop.run_until_complete(self._start_vllm(self._count))
        self.max_num_seqs, self.max_model_len = vllm.max_num_seqs, vllm.max_model_len
        self.description = (
            f"vllm engine ({vllm.name}), {vllm.max_num_seqs} sequences x {vllm.max_model_len} "
            f"tokens, KV cache {vllm.num_cache_tokens} tokens"
        )

    def _has_work(self) -> bool:
        return bool(self._tasks) or not (self._beside is None or self._beside.done())

    def _add(self, sequences: Iterable[Sequence]) -> None:
        assert self._loop is not None
        for sequence in sequences:
            task = self._loop.create_task(self._generate(sequence))
            self._tasks[sequence] = task
            task.add_done_callback(partial(self._done, sequence))

    def _remove(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._updated.pop(sequence, None)
            if sequence in self._tasks:
                self._tasks[sequence].cancel()

    def _drain_running(self) -> list[Sequence]:
        drained = [sequence for sequence in self._tasks if sequence.finish_reason is None]
        self._remove(list(self._tasks))
        return drained

    _drain = _drain_running

    def _step(self) -> None:
        """Publishes new tokens of all sequences together."""
        assert self._loop is not None
        self._loop.run_until_complete(self._wait_for_updates())
        fresh, self._updated = list(self._updated), {}
        if fresh:
            self._publish(fresh)

    async def _wait_for_updates(self) -> None:
        """Waits for new tokens, the last sequence's end or the time to stop; takes in submitted and
        cancelled sequences meanwhile.
        """
        while True:
            self._news_event.clear()
            self.thread.take_in()
            left_s = self._seconds_left()
            if self._updated or not self._has_work() or left_s <= 0:
                return
            assert self._loop is not None
            timer = self._loop.call_later(min(left_s, LOOK_EVERY_S), self._news_event.set)
            await self._news_event.wait()
            timer.cancel()

    def _seconds_left(self) -> float:
        """Until the next deadline or the end of a stop's grace; inf without either."""
        now = time.monotonic()
        stop_at_s = self.thread.stop_at_s
        if stop_at_s is not None and stop_at_s <= now:
            return 0.0
        end_s = min(self._next_deadline_s, math.inf if stop_at_s is None else stop_at_s)
        return max(0.001, end_s - now)

    async def _generate(self, sequence: Sequence) -> None:
        reads_each_token = (
            sequence.recipient.streams
            or sequence.params.stop_words
            or sequence.deadline_s is not None
        )
        outputs = self._vllm.generate(
            sequence, each_token=bool(reads_each_token), eos_token_ids=self.setup.eos_token_ids
        )
        try:
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    if sequence.finish_reason is None:
                        self._take(sequence, output)
                    if sequence.finish_reason is not None and not output.finished:
                        break  # by a rule that vLLM does not know
        except Exception as error:
            self._failed(sequence, error)

    def _take(self, sequence: Sequence, output: Any) -> None:
        [completion] = output.outputs
        if sequence.lacks_prompt_logprobs and output.prompt_logprobs:
            num = sequence.params.num_prompt_logprobs or 0
            # The prompt's tokens after the first; vLLM's first output has them.
            pairs = zip(sequence.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
            sequence.prompt_logprobs += [token_logprobs(one, found, num) for one, found in pairs]
        if not sequence.params.max_tokens:
            sequence.end("length")
            self.metrics.began(sequence, _queue_time_s(output))
        sequence.num_reused_tokens = getattr(output, "num_cached_tokens", None) or 0
        num_before = len(sequence.token_ids)
        for token_id, logprobs in _tokens(sequence, completion):
            if sequence.finish_reason is not None:
                break
            sequence.append(token_id, self.setup.eos_token_ids, logprobs)
        num_new = len(sequence.token_ids) - num_before
        self.metrics.num_generated_tokens += num_new
        if not num_before and num_new:
            self.metrics.began(sequence, _queue_time_s(output))
        if sequence.finish_reason is None and output.finished:
            self._ended_early(sequence, completion.finish_reason)
        self._updated[sequence] = None
        self._news_event.set()

    def _ended_early(self, sequence: Sequence, why: str | None) -> None:
        """Handles an end by vLLM where more tokens would follow."""
        constraint = sequence.params.constraint
        if why == "length":
            sequence.end("length")
        elif constraint is None:
            sequence.end("error", EngineError(f"generating failed: vLLM ended it ({why})"))
        else:
            sequence.end("error", RequestError(f"{constraint.kind}: {_CANNOT_HOLD}"))

    def _failed(self, sequence: Sequence, error: Exception) -> None:
        if sequence.finish_reason is not None:
            return
        if isinstance(error, RequestError):
            # Its traceback would hold this frame, and that the request, until a collection.
            error = error.with_traceback(None)
        elif self._vllm.is_dead:
            error = OverloadedError("vLLM's process died: try again later")
        else:
            log.error(f"a request of the {self.name} engine failed: {place(error)}")
            error = EngineError(f"generating failed: {type(error).__name__}: {reason(error)}")
        self._fail([sequence], error)

    def _done(self, sequence: Sequence, _: asyncio.Task[None]) -> None:
        self._tasks.pop(sequence, None)
        self._news_event.set()

    def _count(self, num_tokens: int, num_running: int, cache_usage: float) -> None:
        self._num_running, self._cache_usage = num_running, cache_usage
        if num_tokens:
            self.metrics.batch_size.observe(num_tokens)

    def end(self, sequences: Iterable[Sequence], error: Exception) -> None:
        super().end(sequences, error)
        assert self._loop is not None
        if self._beside is not None:
            self._beside.cancel()
        self._loop.run_until_complete(_ended(self._tasks.values()))
        self._vllm.shutdown()
        self._loop.run_until_complete(_ended(()))  # it cancels tasks of its own
        self._loop.close()

    def _watch(self) -> None:
        """Ends this process soon after vLLM's has died."""
        while not self._stopping.wait(LOOK_EVERY_S):
            if self._vllm.is_dead:
                log.error("vLLM's process died: this model's process ends too")
                self.stop()
                time.sleep(_CLOSING_S)  # who asks meanwhile is answered with 503
                self._end_process()
                return


async def _ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Waits a moment for cancelled tasks."""
    waiting = list(tasks)
    if waiting:
        await asyncio.wait(waiting, timeout=_CLOSING_S)
    for _ in range(3):
        await asyncio.sleep(0)


def _tokens(sequence: Sequence, completion: Any) -> Iterable[tuple[int, TokenLogprobs | None]]:
    token_ids, num = completion.token_ids, sequence.params.num_logprobs
    if num is None:
        return ((token_id, None) for token_id in token_ids)
    found = map(token_logprobs, token_ids, completion.logprobs, repeat(num))
    return zip(token_ids, found, strict=True)


def _queue_time_s(output: Any) -> float:
    """Seconds that a request waited in vLLM; 0 where vLLM does not tell."""
    metrics = getattr(output, "metrics", None)
    scheduled_s = getattr(metrics, "scheduled_ts", 0.0)
    return max(0.0, scheduled_s - getattr(metrics, "queued_ts", 0.0)) if scheduled_s else 0.0
