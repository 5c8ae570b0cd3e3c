"""Ports of this machine for servers that are measured on it."""

from __future__ import annotations

import socket

from generator.errors import PerfError
from generator.server_listen import Listen
from perf.serving import free_listen

HOST = "127.0.0.1"
NUM_PORTS = 3  # HTTP, gRPC, metrics


class Ports:
    """Free ones out of a range, or wherever the system has some."""

    def __init__(self, allowed: range | None = None) -> None:
        self._allowed = allowed

    def listen(self) -> Listen:
        """Three ports that nobody listens on now. Raises ``PerfError``."""
        if self._allowed is None:
            return free_listen()
        free = [port for port in self._allowed if is_free(port)][:NUM_PORTS]
        if len(free) < NUM_PORTS:
            first, last = self._allowed[0], self._allowed[-1]
            raise PerfError(
                f"--ports {first}-{last}: {len(free)} of them are free, expected {NUM_PORTS} for a "
                "server; end what listens there, or name a longer range"
            )
        return Listen(HOST, *free)


def is_free(port: int) -> bool:
    """Whether one can listen on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
