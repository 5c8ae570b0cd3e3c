"""The addresses at which a server listens, and checks that it can. Knows no process."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from generator.errors import ServerError
from generator.models_yaml.server_settings import bracketed

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_BACKLOG = 1024
_HELD = "HF_TRITON_LISTENING"  # to a child: descriptors by port
_LONGEST_SOCKETS = 80  # of the 107 bytes that a Unix socket's path may have


@contextlib.contextmanager
def socket_folder() -> Iterator[str]:
    """A folder for tritonserver's Unix sockets, which is its owner's alone, while the block runs.

    Raises ServerError where none can be made.
    """
    try:
        folder = tempfile.mkdtemp(prefix="hf-triton-")  # with mode 0700
        if len(os.fsencode(folder)) > _LONGEST_SOCKETS:
            Path(folder).rmdir()
            folder = tempfile.mkdtemp(prefix="hf-triton-", dir="/tmp")
    except OSError as error:
        raise ServerError(
            f"no folder for tritonserver's sockets can be made ({error.filename}: "
            f"{error.strerror}); set TMPDIR to a folder that can be written"
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Listen:
    """One address and its ports; ``openai_port`` and ``health_port`` are 0 where OpenAI's API and
    the supervisor's health are not served.

    ``sockets`` is a folder that only its owner may enter: there tritonserver listens, on a Unix
    socket for each of its ports, and a proxy listens on the ports. Empty: it has the ports itself.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    openai_port: int = 0
    health_port: int = 0
    sockets: str = ""

    @property
    def shared_memory(self) -> str:
        """The prefix of the server's files in shared memory, where this process started it."""
        return f"hf_triton_{os.getpid()}_{self.http_port}_"

    @property
    def abandoned_requests(self) -> str:
        """The prefix of the paths of the files that tell its models of abandoned requests."""
        return f"{SHARED_MEMORY / self.shared_memory}left_"

    @property
    def triton_grpc(self) -> str:
        """The gRPC target at which this machine reaches tritonserver itself."""
        return f"unix:{self.grpc_socket}" if self.sockets else self.address(self.grpc_port)

    @property
    def http_socket(self) -> str:
        return f"{self.sockets}/http"

    @property
    def grpc_socket(self) -> str:
        """Triton adds the port to its name."""
        return f"{self.sockets}/grpc:{self.grpc_port}"

    @property
    def metrics_socket(self) -> str:
        return f"{self.sockets}/metrics"

    @property
    def uses_pipe(self) -> str:
        return self.sockets and f"{self.sockets}/uses"

    def remove_abandoned_requests(self) -> None:
        """Removes the files of calls that were left and never ended: nothing runs any more."""
        prefix = Path(self.abandoned_requests)
        for file in prefix.parent.glob(f"{prefix.name}*"):
            file.unlink(missing_ok=True)

    def triton_flags(self) -> list[str]:
        flags = []
        for flag, port in self.triton_ports().items():
            kind = flag.removeprefix("--").removesuffix("-port")
            address = f"unix:{self.sockets}/{kind}" if self.sockets else self.host
            flags += [f"--{kind}-address={address}", f"{flag}={port}"]
        return flags

    def ports(self) -> dict[str, int]:
        """The ports by the flag that sets each."""
        further = {"--openai-port": self.openai_port, "--health-port": self.health_port}
        return {**self.triton_ports(), **{flag: port for flag, port in further.items() if port}}

    def triton_ports(self) -> dict[str, int]:
        return {
            "--http-port": self.http_port,
            "--grpc-port": self.grpc_port,
            "--metrics-port": self.metrics_port,
        }

    def client_host(self) -> str:
        """An address at which a client on this machine reaches the server."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104

    def address(self, port: int) -> str:
        return f"{bracketed(self.client_host())}:{port}"

    def check(self) -> None:
        """Raises ServerError, naming the flag to change, where a port can't be listened on."""
        seen: dict[int, str] = {}
        for flag, port in self.ports().items():
            if port in seen:
                raise ServerError(f"{seen[port]} and {flag} are both {port}: each needs its own")
            seen[port] = flag
            listening_socket(self.host, port, flag).close()

    def check_triton(self) -> None:
        """Makes the folder of tritonserver's sockets again if somebody has cleared it away. Raises
        ServerError, also where another user has made that meanwhile.
        """
        folder = Path(self.sockets)
        if not self.sockets:
            return
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            seen = folder.lstat()
        except OSError as error:
            text = f"{folder} is gone and can't be made again: {error.strerror}"
            raise ServerError(text) from None
        if seen.st_uid != os.getuid() or stat.S_IMODE(seen.st_mode) & 0o077:
            raise ServerError(f"{folder} is open to other users: start serve again")


class HeldPorts:
    """The ports with these flags, kept open for a child process that listens on them: connections
    that arrive while it is started again wait.
    """

    def __init__(self, listen: Listen, flags: Sequence[str]) -> None:
        self._listen, self._flags = listen, flags
        self._sockets: dict[int, socket.socket] = {}

    def open(self) -> None:
        """Listens, if it does not. Raises ServerError where a port can't be listened on."""
        for flag in self._flags:
            port = self._listen.ports()[flag]
            if port not in self._sockets:
                self._sockets[port] = listening_socket(self._listen.host, port, flag)

    def descriptors(self) -> list[int]:
        return [held.fileno() for held in self._sockets.values()]

    def environment(self) -> dict[str, str]:
        return {_HELD: json.dumps({port: held.fileno() for port, held in self._sockets.items()})}

    def close(self) -> None:
        for held in self._sockets.values():
            held.close()
        self._sockets.clear()


def listening_socket(host: str, port: int, flag: str) -> socket.socket:
    """One that listens on the port: in a child what its parent holds, else a new one. Raises
    ServerError, which names the ``flag`` to change.
    """
    held = json.loads(os.environ.get(_HELD, "{}")).get(str(port))
    if held is not None:
        return socket.socket(fileno=held)
    with contextlib.ExitStack() as stack:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, kind, _, _, address = found[0]
            listening = stack.enter_context(socket.socket(family, kind))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
        except (socket.gaierror, UnicodeError):
            raise ServerError(f"'{host}' is not an address; see --host") from None
        except OSError as error:
            why = f"can't listen on port {port} of '{host}' ({error.strerror}); see {flag}"
            if error.errno == errno.EADDRINUSE:
                why = f"port {port} is in use; choose another with {flag}"
            elif error.errno == errno.EADDRNOTAVAIL:
                why = f"'{host}' is not an address of this machine; see --host"
            raise ServerError(why) from None
        stack.pop_all()
    return listening
