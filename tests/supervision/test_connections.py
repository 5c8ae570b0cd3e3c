"""Which connections wait for an answer, by the kernel."""

from __future__ import annotations

import socket
import time

from generator.supervision.machine.connections import connections_to
from tests.support.triton import eventually


def test_a_connection_waits_from_its_request_to_its_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connections_to(port) == []
        with socket.create_connection(("127.0.0.1", port)) as client:
            peer, _ = server.accept()
            with peer:
                client.sendall(b"request")
                peer.recv(100)
                assert [c.is_answered for c in connections_to(port)] == [False]
                time.sleep(0.1)  # the kernel's clock ticks
                peer.sendall(b"answer")
                client.recv(100)
                assert eventually(lambda: [c.is_answered for c in connections_to(port)] == [True])
                assert eventually(lambda: connections_to(port)[0].sent_s > 0.1)


def test_connections_over_ipv6_are_seen_too() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("::1", port)):
            assert eventually(lambda: len(connections_to(port)) == 1)
