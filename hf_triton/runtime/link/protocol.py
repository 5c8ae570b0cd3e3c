"""The addresses of engines: abstract Unix sockets (man 7 unix), which leave no file behind. An
address names the version of the frames, so no two versions ever connect.

BLS, Triton's own calls from model to model, does not do: it holds a thread for each waiting request
(of 200 requests 6 ran at a time) and does not pass cancellations on.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import socket
import struct
from pathlib import Path

# To be incremented whenever a frame changes its meaning: generated folders of two releases can be
# loaded for the moment between two reloads.
VERSION = 7
_STARTTIME = 22 - 3  # man 5 proc_pid_stat: field 22, counted from the one after the name
_LISTENS = "00010000"  # the flag __SO_ACCEPTCON in /proc/net/unix
_listener_numbers = itertools.count()


class LinkError(Exception):
    """The peer is another user's process, or sent something that is no frame."""


def server_identity() -> str:
    """Identifies the running tritonserver: its process id, start time and pid namespace.

    A process id alone is used again in other containers, and after a while in the same one.
    """
    parent = os.getppid()
    stat = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8", errors="replace")
    started = stat.rpartition(")")[2].split()[_STARTTIME]
    namespace = re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))
    return f"{namespace}-{parent}-{started}"


def address_prefix(identity: str, model: str) -> str:
    """Has a digest in the place of the name, because an address has at most 107 bytes."""
    digest = hashlib.sha256(model.encode()).hexdigest()[:16]
    return f"hf_triton-{VERSION}-{identity}-{digest}-"


def new_address(model: str) -> str:
    """An address that no other listener uses."""
    prefix = address_prefix(server_identity(), model)
    return f"{prefix}{os.getpid()}-{next(_listener_numbers)}"


def find_addresses(identity: str, model: str) -> list[str]:
    prefix = f"@{address_prefix(identity, model)}"
    lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    columns = (line.split(maxsplit=7) for line in lines if prefix in line)
    # A listener's connections are listed under its name too.
    return sorted(row[7][1:] for row in columns if row[3] == _LISTENS and row[7].startswith(prefix))


def check_peer(sock: socket.socket) -> None:
    """Raises LinkError for another user's process: abstract sockets have no permissions."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    if uid != os.geteuid():
        raise LinkError(f"peer is of user {uid}, allowed: {os.geteuid()}")
