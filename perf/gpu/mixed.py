"""The mixed load in process: requests of different lengths come and go, and steps that hold prompts
run eagerly between those that replay a graph.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import islice

from text_generation.detokenizer import Detokenizer
from text_generation.in_flight import InFlightEngine
from text_generation.sampling_params import SamplingParams
from text_generation.sequence import Sequence, Update

from perf.gpu.engines import TimedRunner
from perf.gpu.results import Row
from perf.load.requests import Request, requests

_REQUESTS_PER_CLIENT, _MOST_REQUESTS = 8, 1024
_TIMEOUT_S = 120.0


class _Clients:
    """Each sends its next request when its last is answered; counts tokens."""

    streams = False
    request_id = ""

    def __init__(self, engine: InFlightEngine, stream: Iterator[Request]) -> None:
        self.num_tokens = 0
        self._engine, self._stream = engine, stream
        self._num_open = 0
        self._failure: Exception | None = None
        self._done = threading.Event()

    def run(self, number: int) -> None:
        """Returns when the stream is at its end and all is answered. Raises what went wrong."""
        self._num_open = number
        for _ in range(number):
            self._next()
        if not self._done.wait(_TIMEOUT_S):
            raise TimeoutError(f"{self._num_open} requests unanswered in {_TIMEOUT_S:g} s")
        if self._failure is not None:
            raise self._failure

    def take(self, update: Update) -> None:
        if update.error is not None:
            self.fail(update.error)
        elif update.finish_reason is not None:
            self.num_tokens += len(update.tokens)
            self._next()

    def flush(self) -> None:
        """Nothing is sent."""

    def fail(self, error: Exception) -> None:
        self._failure = error
        self._done.set()

    def _next(self) -> None:
        request = next(self._stream, None)
        if request is None:
            self._num_open -= 1
            if not self._num_open:
                self._done.set()
            return
        prompt = [2 + (request.index + i) % 1000 for i in range(request.num_prompt_tokens)]
        params = SamplingParams(max_tokens=request.max_tokens)
        self._engine.submit([Sequence(prompt, params, self, Detokenizer(None, prompt))])


def mixed_row(engine: InFlightEngine, clients: int, seed: int) -> Row:
    """Useful tokens/s of so many clients, and what share of the steps and of the time had prompts
    in it.
    """
    inner = engine.runner
    number = min(_REQUESTS_PER_CLIENT * clients, _MOST_REQUESTS)
    timed = TimedRunner(inner)
    engine.runner = timed
    begun_s = time.perf_counter()
    load = _Clients(engine, islice(requests(seed), number))
    load.run(min(clients, number))
    taken_s = time.perf_counter() - begun_s
    engine.runner = inner
    ends = [at for at, _ in timed.begun[1:]] + [begun_s + taken_s]
    with_prompts = [
        end - at for (at, decodes), end in zip(timed.begun, ends, strict=True) if not decodes
    ]
    without = len(timed.begun) - len(with_prompts)
    return {
        "clients": clients,
        "requests": number,
        "useful_tokens_per_s": load.num_tokens / taken_s,
        "steps_with_prompts_share": len(with_prompts) / len(timed.begun),
        "time_with_prompts_share": sum(with_prompts) / taken_s,
        "step_with_prompts_ms": sum(with_prompts) / len(with_prompts) * 1e3,
        "other_step_ms": (taken_s - sum(with_prompts)) / without * 1e3 if without else None,
    }
