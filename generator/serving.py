"""A started server from its first model to its end: progress, curl lines, signals, exit code.

Results (curl lines) go to stdout, everything else to stderr. Knows nothing of models.yaml.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from generator import model_config
from generator.curl_lines import curl_lines
from generator.errors import EXIT_INTERRUPTED, EXIT_OK, RepositoryError, ServerError
from generator.openai_api.beside import OpenAiProcess
from generator.server import TritonServer
from generator.server_loading import Loaded
from generator.server_state import ServerState, remove_state, write_state
from generator.server_stubs import StubWatch
from generator.supervision.health import Health
from generator.supervision.health_port import health_port

_REMIND_EVERY_S = 10.0
_POLL_S = 0.5
_WATCH_EVERY_S = 1.0
# What ends a program in the foreground: Ctrl-C, `docker stop`, a closed terminal.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(KeyboardInterrupt):
    """A signal asked us to stop."""


def stop_signals() -> list[signal.Signals]:
    """The signals that ask for a graceful stop."""
    return [number for number in _STOP_SIGNALS if not _is_ignored_hangup(number)]


@dataclass(frozen=True)
class ServeOptions:
    """How to serve: ``config`` is the models.yaml, of which only the path is told."""

    config: Path
    load_timeout_s: float | None = None


def serve(
    server: TritonServer,
    models: Sequence[str],
    options: ServeOptions,
    openai_api: OpenAiProcess | None = None,
) -> int:
    """Starts ``server``, loads ``models`` and watches it until a signal; returns the exit code.

    Raises ServerError when it does not start, dies, or no model loads; nothing is left behind.
    """
    before = {number: signal.signal(number, _raise_stop) for number in stop_signals()}
    health = Health()
    try:
        with health_port(server.listen, health):
            server.start()
            health.set_server_up(True)
            with _findable(server, options.config):
                return _serve_until_stopped(server, models, options, health, openai_api)
    finally:
        if openai_api:
            openai_api.kill()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _findable(server: TritonServer, config: Path) -> Iterator[None]:
    """Leaves word in the repository of how to reach the server, for ``apply``."""
    listen = server.listen
    state = ServerState(
        pid=os.getpid(),
        host=listen.client_host(),
        http_port=listen.http_port,
        grpc_port=listen.grpc_port,
        metrics_port=listen.metrics_port,
        health_port=listen.health_port,
        config=str(config.resolve()),
        admin_key=server.api.admin_key,
    )
    try:
        write_state(server.repository, state)
    except RepositoryError as error:
        _say(f"{error}; `hf-triton apply` will need --url and the admin key")
    try:
        yield
    finally:
        remove_state(server.repository, listen.http_port)


def _serve_until_stopped(
    server: TritonServer,
    models: Sequence[str],
    options: ServeOptions,
    health: Health,
    openai_api: OpenAiProcess | None,
) -> int:
    try:
        if openai_api:
            openai_api.start()
        health.set_models(dict.fromkeys(models, "is being loaded"))
        _load(server, models, options.load_timeout_s, openai_api)
        reasons = {model: "" if model in server.loader.ready else "not ready" for model in models}
        health.set_models(reasons)
        health.enter("serving")
        _watch(server, openai_api)
    except StopRequested:
        health.enter("stopping")
        return _stop(server, openai_api)
    except BaseException:
        server.kill()
        raise


def _load(
    server: TritonServer,
    models: Sequence[str],
    timeout_s: float | None,
    openai_api: OpenAiProcess | None,
) -> None:
    """Returns when every model is ready, has failed, or is too late. Raises ServerError."""
    began = time.monotonic()
    remind_at = began + _REMIND_EVERY_S
    loading = list(models)
    _say(f"tritonserver is up, loading {_count(models)}: {', '.join(models)}")
    server.loader.begin(models)
    while loading:
        outcome = server.next_outcome(_POLL_S)
        now = time.monotonic()
        if outcome:
            loading.remove(outcome.model)
            _announce(server, outcome, loading, openai_api)
        elif timeout_s is not None and now - began > timeout_s:
            _say(f"still loading after {timeout_s:g} s, no longer waiting: {', '.join(loading)}")
            break
        elif now > remind_at:
            remind_at = now + _REMIND_EVERY_S
            _say(f"still loading after {now - began:.0f} s: {', '.join(loading)}")
    if not server.loader.ready:
        raise ServerError("no model is ready, so there is nothing to serve")
    listen = server.listen
    where = f"http {listen.address(listen.http_port)}, grpc {listen.address(listen.grpc_port)}"
    if openai_api:
        where += f", OpenAI's API http://{listen.address(listen.openai_port)}/v1"
    _say(f"serving {len(server.loader.ready)} of {_count(models)} on {where}; Ctrl-C stops")


def _watch(server: TritonServer, openai_api: OpenAiProcess | None) -> NoReturn:
    """Never returns; tells of late and lost models. Raises ServerError when the server dies."""
    stubs = StubWatch(server.pid)
    while True:
        outcome = server.next_outcome(_WATCH_EVERY_S)
        lost = {server.loader.model_of(stub.model) for stub in stubs.newly_gone()}
        for model in sorted(lost & server.loader.ready):
            _say(f"model '{model}': its Python process died (out of memory?); start serve again")
        if outcome:
            _announce(server, outcome, [], openai_api)
        news = openai_api.revive() if openai_api else None
        if news:
            _say(news)


def _announce(
    server: TritonServer,
    outcome: Loaded,
    loading: Sequence[str],
    openai_api: OpenAiProcess | None,
) -> None:
    others = f"; still loading: {', '.join(loading)}" if loading else ""
    if outcome.failure:
        _say(f"model '{outcome.model}' failed to load: {outcome.failure}{others}")
        return
    _say(f"{outcome.model} is ready after {outcome.seconds:.1f} s{others}")
    config_file = server.repository / outcome.model / "config.pbtxt"
    if model_config.arm_of(config_file):
        return  # asked through the model whose arm it is
    url = f"http://{server.listen.address(server.listen.http_port)}/v2/models"
    lines = curl_lines(server.repository, outcome.model, url)
    if openai_api:
        lines += openai_api.curl_lines(outcome.model, config_file)
    print("\n".join([f"# {outcome.model}", *lines]), flush=True)


def _stop(server: TritonServer, openai_api: OpenAiProcess | None) -> int:
    _say("stopping after the requests in flight; Ctrl-C again forces it")
    try:
        if openai_api:
            openai_api.begin_stop()
        code = server.stop()
        if openai_api:
            openai_api.end()
    except StopRequested:
        server.kill()
        return EXIT_INTERRUPTED
    _say("stopped" if code == 0 else "stopped by force")
    return EXIT_OK if code == 0 and server.loader.ready else EXIT_INTERRUPTED


def _is_ignored_hangup(number: signal.Signals) -> bool:
    """Whether we were started by nohup, and a closed terminal is not to end us."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def _raise_stop(signum: int, _frame: FrameType | None) -> NoReturn:
    raise StopRequested(signal.Signals(signum).name)


def _count(models: Sequence[str]) -> str:
    return f"{len(models)} model{'s' * (len(models) != 1)}"


def _say(text: str) -> None:
    sys.stderr.write(f"hf-triton: {text}\n")  # in one piece: the log is written from a thread
    sys.stderr.flush()
