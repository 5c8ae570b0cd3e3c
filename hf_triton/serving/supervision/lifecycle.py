"""A server from its start to its end: signals, the state file by which others find it, exit code.

loop.py keeps it alive in between. Knows nothing of models.yaml.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK, RepositoryError, ServerError
from hf_triton.serving.supervision.health import Health, health_port
from hf_triton.serving.supervision.loop import PublicPorts, ServeOptions, Supervisor
from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.tritonserver.child_process import STOP_TIMEOUT_S
from hf_triton.tritonserver.log import say
from hf_triton.tritonserver.model_state import State
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.state_file import ServerState, remove_state, write_state
from hf_triton.tritonserver.system_calls import signals_as_interrupts

_MOST_DESCRIPTORS = 1 << 20  # some programs go through all that they may have
_ONLY_LOADS_S = 3.0
_UNLOADED_WITHIN_S = 10.0
# Signals that end a program in the foreground: Ctrl-C, `docker stop`, a closed terminal.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def raise_limits() -> None:
    """Raises this process' limits, which are its children's too, as far as it may: on file
    descriptors, of which each connection takes one (the usual 1,024 are there for programs that
    call select()), and on addresses. Threads' stacks, libraries and CUDA take hundreds of GiB of
    those, of which little is ever used; where some are refused, libraries abort with "Resource
    temporarily unavailable" and no reason.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        resource.setrlimit(limit, (resource.getrlimit(limit)[1],) * 2)


def serve(
    server: TritonServer, models: Sequence[str], options: ServeOptions, ports: PublicPorts
) -> int:
    """Starts ``server``, loads ``models`` and keeps them alive until a signal; returns the exit
    code.

    Raises ServerError if it does not start, if no model is left to serve, or if it dies too often;
    no process or file is left behind.
    """
    raise_limits()
    health = Health()
    with signals_as_interrupts(*_STOP_SIGNALS):
        try:
            with health_port(server.listen, health):
                ports.process.begin_start()  # it imports meanwhile
                server.start()
                health.set_server_up(True)
                with _state_file(server, options.config):
                    served = ServedModels(server.repository, models)
                    with contextlib.suppress(RepositoryError):  # told with the state file
                        served.record()
                    supervisor = Supervisor(server, served, health, options, ports)
                    return _serve_until_stopped(supervisor, options)
        finally:
            ports.process.kill()
            server.listen.remove_abandoned_requests()


@contextlib.contextmanager
def _state_file(server: TritonServer, config: Path) -> Iterator[None]:
    """Writes the state file in the repository, by which ``apply`` finds the server."""
    listen = server.listen
    state = ServerState(
        **{**dataclasses.asdict(listen), "host": listen.client_host()},
        pid=os.getpid(),
        config=str(config.absolute()),  # unresolved: a link may lead elsewhere later
        repository=str(server.repository.absolute()),
    )
    try:
        write_state(state)
    except RepositoryError as error:
        say(f"{error}; `hf-triton apply` will not find this server")
    try:
        yield
    finally:
        remove_state(server.repository, listen.http_port)


def _serve_until_stopped(supervisor: Supervisor, options: ServeOptions) -> int:
    server = supervisor.server
    try:
        supervisor.begin_to_load()
        supervisor.ports.process.wait_until_it_listens()
        while True:
            supervisor.look()
    except KeyboardInterrupt:
        code = _stop(supervisor, options.drain_s)
        return code if supervisor.has_served else EXIT_INTERRUPTED
    except BaseException:
        supervisor.loader.end()
        server.kill()
        raise


def _stop(supervisor: Supervisor, drain_s: float) -> int:
    server, health, ports = supervisor.server, supervisor.health, supervisor.ports.process
    health.enter("stopping")
    after = f", in {drain_s:g} s" if drain_s else ""
    say(f"stopping after the requests in flight{after}; Ctrl-C again forces it")
    loader, states, is_stuck = supervisor.loader, supervisor.states, False
    try:
        try:
            # Load balancers see that we are not ready, and stop sending.
            ends_s = time.monotonic() + drain_s
            while time.monotonic() < ends_s:
                supervisor.look()
        except ServerError as error:  # no server to drain
            say(str(error))
        loader.end()
        ports.begin_stop()
        only_loads = states.any(State.LOADING) and not states.any(State.READY, State.HEALING)
        ends_s = time.monotonic() + _ONLY_LOADS_S if only_loads else math.inf

        def waits_in_vain() -> bool:
            """Triton 24.10 waits for every load, and for every request; those that a process took
            with it when it died are never answered. All others have been once the process through
            which they came has ended: models are to be unloaded soon then.
            """
            nonlocal ends_s, is_stuck
            if ports.has_ended and not is_stuck:
                is_stuck, ends_s = True, min(ends_s, time.monotonic() + _UNLOADED_WITHIN_S)
            return time.monotonic() > ends_s

        code = server.stop(waits_in_vain)
        ports.end(time.monotonic() + STOP_TIMEOUT_S)
    except KeyboardInterrupt:
        server.kill()
        return EXIT_INTERRUPTED
    is_graceful = code == 0 or is_stuck
    say("stopped" if is_graceful else "stopped by force")
    given_up = health.given_up()
    if given_up:
        say(f"exit code {EXIT_INPUT}, because models were given up: {', '.join(given_up)}")
        return EXIT_INPUT
    return EXIT_OK if is_graceful else EXIT_INTERRUPTED
