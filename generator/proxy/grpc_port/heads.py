"""The heads of gRPC calls: read as they come, written anew for tritonserver."""

from __future__ import annotations

from dataclasses import dataclass

import hpack

from generator.proxy.grpc_port.frames import Headers, ProtocolError, header_block
from generator.proxy.grpc_port.messages import CALLER

_KEY = b"authorization"
# Streams that are cancelled beside an error end tritonserver where triton_grpc_error is asked for
# (before 26.04). Messages go on as they are when they are decoded, and a deadline is the client's:
# it leaves when it comes.
_NOT_PASSED_ON = {CALLER.encode(), b"triton_grpc_error", b"grpc-encoding", b"grpc-timeout"}
_MAX_KEPT = 256


@dataclass(frozen=True)
class Head:
    """``path`` is the method, "" for what is no call; ``block`` is for Triton, without the key
    and without who the caller is.
    """

    path: str
    authorization: bytes | None
    encoding: bytes
    block: bytes


class HeadReader:
    """The heads that come over one connection, each of which may refer to those before."""

    def __init__(self, *, keeps_keys: bool) -> None:
        self._decoder = hpack.Decoder()
        self._decoder.max_header_list_size = 65_536
        self._leave_out = _NOT_PASSED_ON | ({_KEY} if keeps_keys else set())
        self._kept: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head:
        """Raises ProtocolError where it can't be read."""
        found = self._kept.get(block)
        if found:
            return found
        table = self._decoder.header_table
        before = tuple(map(id, table.dynamic_entries))
        try:
            headers = self._decoder.decode(block, raw=True)
        except hpack.HPACKError:
            raise ProtocolError from None
        head = self._head([(bytes(name), bytes(value)) for name, value in headers])
        if tuple(map(id, table.dynamic_entries)) != before:
            self._kept.clear()
        elif len(self._kept) < _MAX_KEPT:
            self._kept[block] = head
        return head

    def _head(self, headers: Headers) -> Head:
        by_name = dict(headers)
        path = by_name.get(b":path", b"").decode("latin-1")
        if by_name.get(b":method") != b"POST":
            path = ""
        passed_on = [(name, value) for name, value in headers if name not in self._leave_out]
        encoding = by_name.get(b"grpc-encoding", b"identity")
        return Head(path, by_name.get(_KEY), encoding, header_block(passed_on))
