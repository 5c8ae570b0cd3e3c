"""Requests that outlive the process that computes them.

If a process dies, its requests are sent again once their model is back. A request that may have
caused the death runs alone from then on; if the process dies again, the request is refused. The
supervisor tells which models will come back, and how often each has died. It is told how many
requests wait for each model that is loaded on demand, and how many such a model has.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from generator.repository.writing import is_locked
from hf_triton.ports.call_files import AbandonedRequests, Stream, first_text
from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.time_limit import timeout
from hf_triton.runtime.request.request_parameters import call_text
from hf_triton.tritonserver.model_state import Cause, State
from hf_triton.tritonserver.triton_texts import AWAY, NOT_FOUND

DIED = "the process of this model died while it answered; ask again"  # of a stream
GONE = "tritonserver ended while it had this request; try again"
UNREACHABLE = "no connection to Triton; try again"
STARTING = "tritonserver does not answer: it is being started; try again"
WAIT_S = 300.0
TELL_AFTER_S = 0.1  # the supervisor is told of requests at most so often
_SLACK_S = 1.0  # after a request's deadline, so that a model that knows it ends the request itself
NOTICED_S = 10.0  # after a death a supervisor on a busy machine knows of it by then
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
# A process that crashes does so because of a request, so each that it had is suspected. A kill
# counts half as much, because it may come from outside.
_SUSPECT = 2


class Model(msgspec.Struct, frozen=True, array_like=True):
    """A Triton model's state, and the ``reason`` why it is not ready. While it ``is_coming`` its
    requests wait; with a ``failure`` they are refused, and may come again after ``retry_s``.

    ``num_deaths`` of its processes have died, the last one of ``cause`` and ``why``. A model that
    ``is_ours`` runs our library and knows the parameters by which ports tell it of a request.
    ``waits_for`` says why it is not loaded yet. A model that is loaded on demand has a word for its
    state in ``residence``, and requests wait ``wait_s`` for it.
    """

    is_coming: bool = False
    num_deaths: int = 0
    why: str = ""
    cause: Cause = Cause.NONE
    state: State = State.READY
    reason: str = ""
    is_ours: bool = False
    residence: str = ""
    waits_for: str = ""
    wait_s: float = 0.0  # WAIT_S
    failure: str = ""
    retry_s: int = 0

    @property
    def is_asleep(self) -> bool:
        """True if the next request makes the supervisor load it."""
        return bool(self.residence) and self.is_coming and not self.failure

    @property
    def may_come_back(self) -> bool:
        """True if it may be there again after an error that says that it is not."""
        return self.is_coming or bool(self.residence) or self.state is State.READY


Demand = dict[str, tuple[int, int, int]]  # requests that wait, that run, that were ever sent
Models = dict[str, Model]
_UNKNOWN = Model(state=State.ASLEEP)
_DECODER = msgspec.json.Decoder(Models)
_DEMAND_DECODER = msgspec.json.Decoder(Demand)


def line_of(models: Models) -> bytes:
    """The line that the supervisor sends to its child processes."""
    return msgspec.json.encode(models) + b"\n"


def demand_of(line: bytes) -> Demand:
    """Reads what a port says of models that are loaded on demand; empty for any other line."""
    try:
        return _DEMAND_DECODER.decode(line)
    except msgspec.DecodeError:
        return {}


class RetryCoordinator:
    """The requests of all ports of a process. Paths of files that they share with the models begin
    with ``prefix``; ``abandoned`` are those of requests that nobody waits for. ``say`` sends a line
    to the supervisor of the models in ``repository``.
    """

    def __init__(
        self,
        prefix: str = "",
        say: Callable[[bytes], None] = lambda _line: None,
        repository: Path = Path(),
    ) -> None:
        self.prefix, self._say, self._repository = prefix, say, repository
        self.abandoned = AbandonedRequests(prefix)
        self.is_stopping = False
        self._models: Models = {}
        self._changed = asyncio.Event()
        self._requests: dict[str, set[InFlight]] = {}
        self._num_sent: dict[str, int] = defaultdict(int)
        self._telling: asyncio.TimerHandle | None = None
        self.exclusive = asyncio.Lock()  # of the request that runs alone

    def follow(self, line: bytes) -> None:
        """Reads a line of the supervisor; calls ``on_lost`` of requests whose process has died."""
        try:
            models = _DECODER.decode(line)
        except msgspec.DecodeError:
            return  # a line that was cut
        before, self._models = self._models, models
        self._wake()
        self._tell_soon(models)
        for name, model in models.items():
            if model.num_deaths > before.get(name, _UNKNOWN).num_deaths:
                for request in list(self._requests.get(name, ())):
                    if request.is_sent:
                        request.on_lost()

    def begin_stop(self) -> None:
        """Makes every request that waits give up."""
        self.is_stopping = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def may_come_back(self) -> bool:
        """True if tritonserver is restarted should it die now."""
        return bool(self._models) and not self.is_stopping

    def model(self, name: str) -> Model:
        return self._models.get(name, _UNKNOWN)

    def why_loading(self, name: str) -> str:
        """Why a model that is loaded for the first time is not there yet, "" for any other. The
        supervisor does not know of a model that an apply adds before it is ready; the apply locks
        its folder, as it does to remove one.
        """
        told, folder = self.model(name), self._repository / name
        if told.state is State.LOADING:
            return told.waits_for
        is_unknown = told.state is State.ASLEEP and folder.parent == self._repository
        return "is being loaded or removed by an apply" * (is_unknown and is_locked(folder))

    def coming(self) -> list[str]:
        """The Triton models that are down, and being brought back."""
        return [
            name
            for name, model in self._models.items()
            if model.is_coming and (model.residence or not model.failure)
        ]

    def not_ready(self) -> dict[str, Model]:
        """The models, as models.yaml names them, that are not ready."""
        return {name: model for name, model in self._models.items() if model.reason}

    def asleep(self) -> list[str]:
        """The Triton models that the next request has loaded, or would, could they be loaded."""
        return [name for name, model in self._models.items() if model.residence and model.is_coming]

    @property
    def num_in_flight(self) -> int:
        """The requests of all ports that wait for their models, or are with them."""
        return sum(map(len, self._requests.values()))

    async def change(self, timeout_s: float) -> None:
        """Returns when the supervisor has said something, or the time is over."""
        with contextlib.suppress(asyncio.TimeoutError):
            async with timeout(timeout_s):
                await self._changed.wait()

    def track(self, request: InFlight, *, is_sent: bool) -> None:
        """Adds a request that was sent, or that waits for its model."""
        request.is_sent = is_sent
        self._requests.setdefault(request.model, set()).add(request)
        if is_sent and self.model(request.model).residence:  # clients make up names of others
            self._num_sent[request.model] += 1
        self._tell_soon((request.model,))

    def untrack(self, request: InFlight) -> None:
        found = self._requests.get(request.model, set())
        found.discard(request)
        if not found:
            self._requests.pop(request.model, None)
        self._tell_soon((request.model,))

    def _tell_soon(self, models: Iterable[str]) -> None:
        """Has the supervisor told, if one of the models is loaded on demand."""
        if self._telling is None and any(self.model(name).residence for name in models):
            self._telling = asyncio.get_running_loop().call_later(TELL_AFTER_S, self._tell)

    def _tell(self) -> None:
        self._telling, demand = None, {}
        for name, model in self._models.items():
            requests = self._requests.get(name, ())
            num_running = sum(request.is_sent for request in requests)
            counts = len(requests) - num_running, num_running, self._num_sent.get(name, 0)
            if model.residence and any(counts):
                demand[name] = counts
        self._say(msgspec.json.encode(demand))


class InFlight:
    """One request to a Triton model, until its answer ends or it may not be sent again; its
    ``payload`` is None from then on. One without a ``model`` is sent once. While it is with the
    model, ``on_lost`` is called if the model's process dies or the request's time is over.
    """

    def __init__(
        self,
        coordinator: RetryCoordinator,
        model: str,
        on_lost: Callable[[], None],
        timeout_s_of: Callable[[Any], float] = lambda _payload: math.inf,
        stream: str = "",
        payload: Any = b"",
    ) -> None:
        """``timeout_s_of`` returns the timeout in a payload, and is called only when the request
        has to wait. ``stream`` names a stream that another process may go on with.
        """
        self.model, self.on_lost, self.payload = model, on_lost, payload
        self._coordinator, self._timeout_s_of = coordinator, timeout_s_of
        self._began_s = time.monotonic()
        self._deadline_s: float | None = None  # set when it first waits
        self._ends_s = math.inf  # the time until which it may wait
        self._away_since_s: float | None = None
        self._pause_s = 0.0
        self.stream = Stream(coordinator.prefix, stream) if stream else None
        self.is_sent = False
        self.has_begun = False  # whether some of its answer, a stream, was passed on
        self._num_known = 0  # deaths of its model when it was sent
        self._num_deaths = self._suspicion = 0
        self._num_then = 0  # responses of its stream at the last death
        self._is_exclusive = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def may_be_sent_again(self) -> bool:
        """True with a model, a payload and, for a stream that has begun, a journal."""
        if not self.model or self.payload is None:
            return False
        return not self.has_begun or (self.stream is not None and self.stream.goes_on)

    def passed_on(self, num_responses: int = 1) -> None:
        """Records that its caller got ``num_responses`` more, of a stream or whole; drops the
        payload of one that may not be sent again from then on.
        """
        had_begun, self.has_begun = self.has_begun, True
        if self.stream:
            self.stream.num_responses += num_responses
        if not (had_begun or self.may_be_sent_again):
            self.payload = None

    def call_text(self, name: str) -> str:
        """Returns a text that tells its model of it; ``name`` is that of the call under way."""
        waited_s = 0.0 if self._deadline_s is None else time.monotonic() - self._began_s
        if self.stream is None:
            return call_text(name, 0, waited_s, "")
        return call_text(name, self.stream.num_responses, waited_s, self.stream.name)

    def payload_for(self, name: str) -> bytes:
        """The payload, made for the first call of that name, with the text for this call."""
        payload: bytes = self.payload
        if not name or self._deadline_s is None:  # the same
            return payload
        first = first_text(name, streams=self.stream is not None)
        return payload.replace(first.encode(), self.call_text(name).encode(), 1)

    async def wait_until_sendable(self) -> None:
        """Waits until it may be sent, if its model is away or it was sent before, and counts it as
        sent. Raises RefusedError if it may not be sent any more.
        """
        if not (self.is_sent or self._told.is_coming):
            self._enter()
            return
        self._leave()
        if self._deadline_s is None:
            self._deadline_s = self._began_s + self._timeout_s_of(self.payload)
        if self._ends_s == math.inf:
            self._ends_s = min(time.monotonic() + (self._told.wait_s or WAIT_S), self._deadline_s)
        self._coordinator.track(self, is_sent=False)
        try:
            await asyncio.sleep(self._pause_s)
            if self._is_exclusive:
                await self._judge()
            await self._wait_for_model()
            self._count_death()
            if self._suspicion >= _SUSPECT:
                async with timeout(self._left_s()):
                    await self._coordinator.exclusive.acquire()
                self._is_exclusive = True
                await self._wait_for_model()
            self._left_s()
        except asyncio.TimeoutError:
            raise self._too_late() from None
        self._enter()

    async def _wait_for_model(self) -> None:
        """Raises asyncio.TimeoutError, and RefusedError if its model can't be loaded."""
        while self._told.is_coming:
            self._away_since_s = None
            if self._told.failure:
                text = f"model '{self.model}' can't be loaded: {self._told.failure}"
                raise RefusedError(503, text, {"Retry-After": str(self._told.retry_s)})
            await self._coordinator.change(self._left_s())

    def lost(self) -> None:
        """Notes that the connection to its model was closed or the model's process died: the
        supervisor tells of deaths.
        """
        self._ends_s, self._away_since_s, self._pause_s = math.inf, None, 0.0
        self._leave()

    def is_retryable(self, error: str) -> bool:
        """True if it is to be sent again: its error says that the model is not there, and the
        model may come back. Raises RefusedError while the model is loaded for the first time.
        """
        if not self.may_be_sent_again:
            return False
        if not self._told.may_come_back:
            if NOT_FOUND.search(error) and (why := self._coordinator.why_loading(self.model)):
                text = f"model '{self.model}' {why}; try again"
                raise RefusedError(503, text, {"Retry-After": "1"})
            return False
        if not AWAY.search(error):
            return False
        now = time.monotonic()
        is_known = self._told.is_coming or self._has_died() or error in (UNREACHABLE, STARTING)
        if is_known:
            self._away_since_s = None
        elif self._away_since_s is None:
            self._away_since_s = now
        elif now - self._away_since_s > NOTICED_S:
            return False  # it will not be loaded again
        self._pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * self._pause_s))
        return True

    def end(self) -> None:
        """Ends a request that was answered, refused or left by its caller."""
        self.payload = None  # it and its sender refer to each other
        if self.stream:
            self.stream.close()
        self._leave()
        self._yield_to_others()

    def _enter(self) -> None:
        self._num_known = self._told.num_deaths
        self._coordinator.track(self, is_sent=True)
        if self._deadline_s is not None and self._deadline_s < math.inf:
            loop = asyncio.get_running_loop()
            left_s = self._deadline_s - time.monotonic()
            self._timer = loop.call_later(left_s + _SLACK_S, self.on_lost)

    def _leave(self) -> None:
        self._coordinator.untrack(self)
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _yield_to_others(self) -> None:
        if self._is_exclusive:
            self._is_exclusive = False
            self._coordinator.exclusive.release()

    def _left_s(self) -> float:
        """The seconds that it may still wait. Raises asyncio.TimeoutError where there are none."""
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0 or self._coordinator.is_stopping:
            raise asyncio.TimeoutError
        return left_s

    @property
    def _told(self) -> Model:
        return self._coordinator.model(self.model)

    def _has_died(self) -> bool:
        return self._told.num_deaths > self._num_known

    def _count_death(self) -> None:
        if not self._has_died():
            return
        by_chance = self._told.cause is not Cause.CRASHED
        before, self._num_then = self._num_then, self.stream.num_responses if self.stream else 0
        if by_chance and self._num_then > before:  # a stream that kills never advances
            self._num_deaths = self._suspicion = 0
        self._num_deaths += 1
        self._suspicion += _SUSPECT - by_chance
        self._num_known = self._told.num_deaths

    async def _judge(self) -> None:
        """Raises RefusedError if its model's process died while it ran alone. Others may run alone
        as soon as that is known.
        """
        noticed_s = time.monotonic() + NOTICED_S
        while not self._has_died() and time.monotonic() < noticed_s:
            await self._coordinator.change(noticed_s - time.monotonic())
        self._yield_to_others()
        before, why = self._suspicion, self._told.why or "tritonserver ended"
        self._count_death()
        if self._suspicion > before and self._suspicion >= 2 * _SUSPECT:
            told = f"{self._num_deaths} times computing this request, the last time alone ({why})"
            text = f"model '{self.model}' died {told}: it is not sent again"
            sys.stderr.write(f"hf-triton: a request is refused: {text}\n")
            raise RefusedError(500, text)

    def _too_late(self) -> RefusedError:
        why = self._told.waits_for or self._told.residence
        what = "was not loaded" if self._told.residence else "did not come back"
        text = f"model '{self.model}' {what} in time{why and f': {why}'}; try again"
        if self._coordinator.is_stopping:
            text = "the server is stopping; try again"
        return RefusedError(503, text, {"Retry-After": "5"})
