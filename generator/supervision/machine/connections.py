"""Which TCP connections to a port wait for an answer, as the kernel sees it: Linux' sock_diag(7),
what `ss -ti` shows, for which no rights are needed. psutil knows connections' addresses and states,
but not when data last went each way.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

# linux/sock_diag.h, inet_diag.h, netlink.h, tcp.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_DUMP_REQUEST = 0x1 | 0x300  # NLM_F_REQUEST | NLM_F_DUMP
_NLMSG_DONE, _NLMSG_ERROR = 3, 2
_INET_DIAG_INFO = 2
_ESTABLISHED, _CLOSE_WAIT = 1, 8
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, process
_REQUEST = struct.Struct("=BBBBI48s")  # family, protocol, extensions, padding, states, socket
_SOCKET = struct.Struct("=BBBB2s2s")  # family, state, timer, retransmissions, ports
_MESSAGE_BYTES = 72  # struct inet_diag_msg, before its attributes
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_TIMES = struct.Struct("=I4xI")  # tcp_info: since data was sent, and received, in milliseconds
_TIMES_OFFSET = 44


@dataclass(frozen=True)
class Connection:
    """Times since data went each way, in seconds."""

    sent_s: float
    received_s: float

    @property
    def is_answered(self) -> bool:
        """Whether the last data was ours, for certain: the kernel counts in ticks of some ms."""
        return self.sent_s < self.received_s


def connections_to(port: int) -> list[Connection]:
    """The connections to a port of this machine. Raises OSError where the kernel does not tell."""
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for message in _dump(family):
            ports = _SOCKET.unpack_from(message)[4]
            times = _times(message)
            if int.from_bytes(ports, "big") == port and times:
                found.append(Connection(times[0] / 1000, times[1] / 1000))
    return found


def _dump(family: int) -> Iterator[bytes]:
    """An inet_diag_msg with its attributes for each connection of the family."""
    states = 1 << _ESTABLISHED | 1 << _CLOSE_WAIT
    extensions = 1 << (_INET_DIAG_INFO - 1)
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, extensions, 0, states, b"")
    head = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _DUMP_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(1)
        netlink.send(head + body)
        while True:
            received = netlink.recv(1 << 16)
            while received:
                length, kind, *_ = _HEADER.unpack_from(received)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    raise OSError("sock_diag refused")
                yield received[_HEADER.size : length]
                received = received[_aligned(length) :]


def _times(message: bytes) -> tuple[int, int] | None:
    """What _TIMES says, of a message with a tcp_info; None of one without."""
    rest = message[_MESSAGE_BYTES:]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if kind == _INET_DIAG_INFO:
            sent, received = _TIMES.unpack_from(rest, _ATTRIBUTE.size + _TIMES_OFFSET)
            return sent, received
        rest = rest[_aligned(max(length, _ATTRIBUTE.size)) :]
    return None


def _aligned(length: int) -> int:
    return (length + 3) & ~3
