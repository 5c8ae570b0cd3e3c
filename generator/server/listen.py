"""Where a server listens, and whether it can; knows no process."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from generator.errors import ServerError


def bracketed(host: str) -> str:
    """``host`` as it stands before a port: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True)
class Listen:
    """One address and its ports; ``openai_port`` and ``health_port`` are 0 where OpenAI's API and
    the supervisor's health are not served.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    openai_port: int = 0
    health_port: int = 0

    def ports(self) -> dict[str, int]:
        """The ports by the flag that sets each."""
        further = {"--openai-port": self.openai_port, "--health-port": self.health_port}
        return {**self.triton_ports(), **{flag: port for flag, port in further.items() if port}}

    def triton_ports(self) -> dict[str, int]:
        """Those that tritonserver itself listens on."""
        return {
            "--http-port": self.http_port,
            "--grpc-port": self.grpc_port,
            "--metrics-port": self.metrics_port,
        }

    def client_host(self) -> str:
        """An address at which a client on this machine reaches the server."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104

    def address(self, port: int) -> str:
        """``host:port`` for a client on this machine."""
        host = self.client_host()
        return f"{bracketed(host)}:{port}"

    def check(self) -> None:
        """Raises ServerError, naming the flag to change, where a port can't be listened on."""
        seen: dict[int, str] = {}
        for flag, port in self.ports().items():
            if port in seen:
                raise ServerError(f"{seen[port]} and {flag} are both {port}: each needs its own")
            seen[port] = flag
            self._check_port(port, flag)

    def check_triton(self) -> None:
        """The same for tritonserver's ports alone, while what runs beside it may have its own."""
        for flag, port in self.triton_ports().items():
            self._check_port(port, flag)

    def _check_port(self, port: int, flag: str) -> None:
        try:
            found = socket.getaddrinfo(self.host, port, type=socket.SOCK_STREAM)
            family, kind, _, _, address = found[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen()
        except (socket.gaierror, UnicodeError):
            raise ServerError(f"'{self.host}' is not an address; see --host") from None
        except OSError as error:
            raise ServerError(self._reason(error, port, flag)) from None

    def _reason(self, error: OSError, port: int, flag: str) -> str:
        if error.errno == errno.EADDRINUSE:
            return f"port {port} is in use; choose another with {flag}"
        if error.errno == errno.EADDRNOTAVAIL:
            return f"'{self.host}' is not an address of this machine; see --host"
        return f"can't listen on port {port} of '{self.host}' ({error.strerror}); see {flag}"
