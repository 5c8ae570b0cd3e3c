"""A server from its start to its end: signals, the state file by which others find it, exit code.

loop.py keeps it alive in between. Knows nothing of models.yaml.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK, RepositoryError, ServerError
from hf_triton.serving.apply.file_watch import Watch
from hf_triton.serving.apply.target import Target
from hf_triton.serving.supervision import limits
from hf_triton.serving.supervision.children import Children
from hf_triton.serving.supervision.hang_detection.dead_process_memory import remove_of_dead_servers
from hf_triton.serving.supervision.health import Health
from hf_triton.serving.supervision.health_port import health_port
from hf_triton.serving.supervision.loop import ServeOptions, Supervisor, with_short_timeout
from hf_triton.serving.supervision.messages import say
from hf_triton.serving.supervision.model_loader import ModelLoader
from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.serving.supervision.stub_deaths import StubDeaths
from hf_triton.tritonserver.model_state import ModelStates, State
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.state_file import ServerState, remove_state, write_state
from hf_triton.tritonserver.stubs import StubEnds, cpu_seconds, find_stubs

__all__ = ["ServeOptions", "StopRequested", "serve", "stop_signals"]

_LOOK_EVERY_S = 1.0
# An idle process wakes up once a second; one that computes uses a core.
_BUSY_SHARE = 0.1
_IDLE_S = 5.0
_ONLY_LOADS_S = 3.0
# What ends a program in the foreground: Ctrl-C, `docker stop`, a closed terminal.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(KeyboardInterrupt):
    """A signal asked us to stop."""


def stop_signals() -> list[signal.Signals]:
    """The signals that ask for a graceful stop."""
    return [number for number in _STOP_SIGNALS if not _is_ignored_hangup(number)]


def serve(
    server: TritonServer,
    models: Sequence[str],
    options: ServeOptions,
    children: Children | None = None,
) -> int:
    """Starts ``server``, loads ``models`` and keeps them alive until a signal; returns the exit
    code.

    Raises ServerError if it does not start, if no model is left to serve, or if it dies too often;
    no process or file is left behind.
    """
    remove_of_dead_servers()
    limits.raise_all()
    shortage = limits.shortage_of_memory()
    if shortage:
        say(f"warning: {shortage}")
    before = {number: signal.signal(number, _raise_stop) for number in stop_signals()}
    health = Health()
    children = children or Children()
    try:
        with health_port(server.listen, health):
            children.begin_start()  # they import meanwhile
            server.start()
            health.set_server_up(True)
            with _state_file(server, options.config):
                return _serve_until_stopped(server, models, options, health, children)
    except ServerError as error:
        why = f"\n  perhaps for lack of memory: {shortage}" if shortage else ""
        raise ServerError(f"{error}{why}") from None
    finally:
        children.kill()
        server.listen.remove_abandoned_requests()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _state_file(server: TritonServer, config: Path) -> Iterator[None]:
    """Writes the state file in the repository, by which ``apply`` finds the server."""
    listen = server.listen
    state = ServerState(
        pid=os.getpid(),
        host=listen.client_host(),
        http_port=listen.http_port,
        grpc_port=listen.grpc_port,
        metrics_port=listen.metrics_port,
        health_port=listen.health_port,
        config=str(config.absolute()),  # unresolved: a link may lead elsewhere later
        sockets=listen.sockets,
        admin_key=server.api.admin_key,
    )
    try:
        write_state(server.repository, state)
    except RepositoryError as error:
        say(f"{error}; `hf-triton apply` will need --url and the admin key")
    try:
        yield
    finally:
        remove_state(server.repository, listen.http_port)


def _serve_until_stopped(
    server: TritonServer,
    models: Sequence[str],
    options: ServeOptions,
    health: Health,
    children: Children,
) -> int:
    served = ServedModels(server.repository, models)
    with contextlib.suppress(RepositoryError):  # reported when the state file was written
        served.record()
    states = ModelStates(options.policy)
    loader = _loader(server, served, states)
    supervisor = Supervisor(server, served, health, loader, states, options, children)
    try:
        supervisor.begin_to_load()
        children.wait_until_they_listen()
        with _watching(server, options, supervisor):
            supervisor.run()
    except StopRequested:
        code = _stop(server, health, loader, states, options.drain_s, children)
        return code if supervisor.has_served else EXIT_INTERRUPTED
    except BaseException:
        loader.end()
        server.kill()
        raise


@contextlib.contextmanager
def _watching(
    server: TritonServer, options: ServeOptions, supervisor: Supervisor
) -> Iterator[None]:
    """Applies changes of the watched files while the block runs, if there are any."""
    if options.watched is None:
        yield
        return
    listen = server.listen
    watch = Watch(
        options.watched,
        server.repository,
        Target(server.api, listen.address(listen.http_port)),
        lambda: supervisor.has_served and server.exit_code() is None,
        say,
    )
    say(f"watching {options.watched.config}: it is applied whenever it is saved")
    watch.start()
    try:
        yield
    finally:
        watch.stop()


def _loader(server: TritonServer, served: ServedModels, states: ModelStates) -> ModelLoader:
    api, ends = with_short_timeout(server.api), StubEnds()
    deaths = StubDeaths(api, lambda: ends.watched(find_stubs(server.pid)), ends)
    return ModelLoader(api, deaths, served, states, say, server.log_tail)


def _stop(
    server: TritonServer,
    health: Health,
    loader: ModelLoader,
    states: ModelStates,
    drain_s: float,
    children: Children,
) -> int:
    health.enter("stopping")
    after = f", in {drain_s:g} s" if drain_s else ""
    say(f"stopping after the requests in flight{after}; Ctrl-C again forces it")
    try:
        time.sleep(drain_s)  # load balancers see that we are not ready, and stop sending
        loader.end()
        children.begin_stop()
        only_loads = states.any(State.LOADING) and not states.any(State.READY, State.HEALING)
        stuck_stop = StuckStop(children, IdleTime(server.pid), loader.has_deaths, only_loads)
        code = server.stop(stuck_stop)
        children.end()
    except StopRequested:
        server.kill()
        return EXIT_INTERRUPTED
    is_graceful = code == 0 or stuck_stop.came
    left = loader.has_deaths and code != 0 and is_graceful
    if left:
        say("stopped; requests of the processes that died were never answered")
    else:
        say("stopped" if is_graceful else "stopped by force")
    given_up = health.given_up()
    if given_up:
        say(f"exit code {EXIT_INPUT}, because models were given up: {', '.join(given_up)}")
        return EXIT_INPUT
    return EXIT_OK if is_graceful else EXIT_INTERRUPTED


class IdleTime:
    """Measures for how long no process of a group has used the processor."""

    def __init__(
        self,
        group: int,
        cpu: Callable[[int], Mapping[int, float]] = cpu_seconds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group, self._cpu, self._clock = group, cpu, clock
        self._before = cpu(group)
        self._looked_at_s = self._busy_at_s = clock()

    def seconds(self) -> float:
        """Seconds since a process last computed; to be called often."""
        now = self._clock()
        elapsed_s = now - self._looked_at_s
        if elapsed_s >= _LOOK_EVERY_S:
            used = self._cpu(self._group)
            limit_s = elapsed_s * _BUSY_SHARE
            if any(value - self._before.get(pid, 0.0) > limit_s for pid, value in used.items()):
                self._busy_at_s = now
            self._before, self._looked_at_s = used, now
        return now - self._busy_at_s


class StuckStop:
    """Whether the stop of one server waits for what can't happen: made when it is asked to stop,
    then called often. Triton 24.10 waits for every load, and for every request; those that a
    process took with it when it died are never answered.
    """

    def __init__(
        self, children: Children, idleness: IdleTime, has_deaths: bool, only_loads: bool
    ) -> None:
        """``has_deaths``: processes of the server have died, and left requests unanswered."""
        self._children, self._idleness, self._has_deaths = children, idleness, has_deaths
        self._ends_s = time.monotonic() + _ONLY_LOADS_S if only_loads else math.inf
        self.came = False

    def __call__(self) -> bool:
        """Whether nothing computes any more, and every request that can be answered has been: the
        processes through which they came have ended. Or there were only loads to wait for.
        """
        is_idle = self._idleness.seconds() > _IDLE_S
        self.came = is_idle and (self._has_deaths or self._children.have_ended)
        return self.came or time.monotonic() > self._ends_s


def _is_ignored_hangup(number: signal.Signals) -> bool:
    """Whether we were started by nohup, and a closed terminal is not to end us."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def _raise_stop(signum: int, _frame: FrameType | None) -> NoReturn:
    raise StopRequested(signal.Signals(signum).name)
