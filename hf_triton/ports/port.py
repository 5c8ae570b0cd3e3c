"""A public port: its connections, and what it has together with the other ports of its process.

Says how long a client may take, and how ports stop. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import resource
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from generator.errors import ServerError
from generator.models_yaml.server_settings import Tls
from generator.render import model_config
from generator.render.manifest import CONFIG_FILE
from hf_triton.ports.bodies import Bodies
from hf_triton.ports.callers import Callers
from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.retries import RetryCoordinator
from hf_triton.ports.settings import EVERYBODY, Access
from hf_triton.ports.time_limit import timeout
from hf_triton.tritonserver.listen import listening_socket

# A client's time limits: for a head, between two pieces of a body, for a whole body, until its next
# request, until it has read what was written, and to read a last answer.
HEAD_S, PIECE_S, BODY_S, IDLE_S, UNREAD_S, LINGER_S = 10.0, 30.0, 600.0, 300.0, 120.0, 5.0
GRACE_S = 60.0  # as long as Triton itself waits for what is in flight
_BACKLOG = 1024
_HANDSHAKE_S = 10.0
_SWEEP_EVERY_S = 1.0
_LATE_CONNECTIONS_S = 0.1
_MAX_CONNECTIONS = 16_384
_SPARE_DESCRIPTORS = 64
# A client's connection and one to tritonserver on each of two HTTP ports, on gRPC's the client's
# and both ends of the one to its server, and on OpenAI's the client's.
_DESCRIPTORS_EACH = 8
_LOOKED_AT = 256


class Connection(Protocol):
    """A client's; ``deadline`` is the time of ``Port.now`` by which it must have got on."""

    deadline: float

    @property
    def is_idle(self) -> bool:
        """True if it has no request, or not all of one."""

    def abort(self) -> None:
        """Closes at once."""

    def time_out(self, now: float) -> None:
        """Ends what takes too long to come."""

    def stop(self) -> None:
        """Closes once what is under way is answered."""


class Connections:
    """At most ``most``. For one more an idle one is closed, so that slow senders keep nobody out:
    among the oldest, the one with the earliest deadline.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: dict[Connection, None] = {}  # in order

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._open))

    def add(self, connection: Connection) -> None:
        self._open[connection] = None
        if len(self) > self.most:
            idle = (one for one in self._open if one.is_idle and one is not connection)
            some = islice(idle, _LOOKED_AT)  # a flood of clients would have it do nothing else
            closed = min(some, key=attrgetter("deadline"), default=connection)
            del self._open[closed]
            closed.abort()

    def remove(self, connection: Connection) -> None:
        self._open.pop(connection, None)


def max_connections() -> int:
    """The most connections that a port may have, by the file descriptors of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(1, min(_MAX_CONNECTIONS, (soft - _SPARE_DESCRIPTORS) // _DESCRIPTORS_EACH))


@dataclass
class Shared:
    """State of all ports of a process, so that each request counts once."""

    access: Access = EVERYBODY
    admin_key: str = ""
    retries: RetryCoordinator = field(default_factory=RetryCoordinator)
    repository: Path = Path()

    def __post_init__(self) -> None:
        self.callers, self.bodies = Callers(self.access), Bodies(self.access.max_body_mib)


class Port:
    """State of all connections of a port, which speaks the protocols ``alpn``."""

    alpn: Sequence[str] = ()

    def __init__(self, shared: Shared) -> None:
        self.access, self.callers = shared.access, shared.callers
        self.retries, self.bodies = shared.retries, shared.bodies
        self.is_stopping = False
        self.now: Callable[[], float] = time.monotonic
        self._admin_key, self.repository = shared.admin_key, shared.repository
        self.connections = Connections(max_connections())
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def config_file(self, model: str) -> Path:
        """The model's config.pbtxt, in the repository even if a caller's name is a path."""
        return Path(f"{self.repository}{os.path.normpath(f'/{model}')}", CONFIG_FILE)

    # 24.10 only: from 25.08 on Triton refuses it.
    def check_classified(self, model: str, outputs: Iterable[str]) -> None:
        """Raises RefusedError for an output that is text, whose classes are asked for: Triton
        divides by the size of one of its elements, which is 0, and ends.
        """
        types = model_config.output_types(self.config_file(model)) if outputs else {}
        for name in outputs:
            kind = types.get(name, "")
            if kind in ("", "TYPE_STRING"):
                got = "of type BYTES" if kind else "that the model does not have"
                text = f"classification: got output '{name[:64]}' {got}; allowed: numbers"
                raise RefusedError(400, text)

    def check_admin_key(self, given: bytes, header: str) -> None:
        """Raises RefusedError where a caller of an API that changes the server lacks the key."""
        if self._admin_key and not hmac.compare_digest(given, self._admin_key.encode()):
            text = (
                f"This protocol is restricted: it needs the header {header} with the admin key "
                "(HF_TRITON_ADMIN_KEY or --admin-key-file), or a server with --open-admin-apis"
            )
            raise RefusedError(403, text)

    def sweep(self) -> None:
        now = self.now()
        for connection in self.connections:
            connection.time_out(now)

    def begin_stop(self) -> None:
        """Connections close after the answers that are under way."""
        self.is_stopping = True
        self.retries.begin_stop()
        for connection in self.connections:
            connection.stop()


class Listener(NamedTuple):
    """A port's address, and what makes a ``new`` protocol for each of its clients; ``flag`` is in
    errors.
    """

    port: Port
    new: Callable[[], asyncio.Protocol]
    number: int
    flag: str


async def serve(
    listeners: Sequence[Listener], host: str, stop: asyncio.Event, on_ready: Callable[[], None]
) -> None:
    """Serves until ``stop``; then accepts no client any more, and waits until what is under way has
    ended, GRACE_S at most. Raises ServerError where a port or its TLS files can't be used.
    """
    loop, ports = asyncio.get_running_loop(), [listener.port for listener in listeners]
    servers = [
        await loop.create_server(
            listener.new,
            sock=listening_socket(host, listener.number, listener.flag),
            backlog=_BACKLOG,
            ssl=(tls := tls_context(listener.port.access.tls, listener.port.alpn)),
            ssl_handshake_timeout=_HANDSHAKE_S if tls else None,
        )
        for listener in listeners
    ]
    on_ready()
    while not stop.is_set():
        for port in ports:
            port.sweep()
        with contextlib.suppress(asyncio.TimeoutError):
            async with timeout(_SWEEP_EVERY_S):
                await stop.wait()
    for server in servers:
        server.close()
    await asyncio.sleep(_LATE_CONNECTIONS_S)  # those that were accepted just now have asked then
    for port in ports:
        port.begin_stop()
    ends_at_s = time.monotonic() + GRACE_S
    while any(port.connections for port in ports) and time.monotonic() < ends_at_s:
        for port in ports:
            port.sweep()
        await asyncio.sleep(0.05)


def tls_context(tls: Tls | None, alpn: Sequence[str] = ()) -> ssl.SSLContext | None:
    """Reads a port's certificate and key; returns None without TLS. Raises ServerError for files
    that can't be used.
    """
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=lambda: b"")  # never prompts
    except OSError as error:  # SSLError is one
        is_tls = isinstance(error, ssl.SSLError)
        reason = "not PEM, encrypted, or not a pair" if is_tls else error.strerror
        raise ServerError(
            f"models.yaml's server.tls: {tls.certificate} and {tls.key} can't be used: {reason}"
        ) from None
    if alpn:
        context.set_alpn_protocols(alpn)
    return context
