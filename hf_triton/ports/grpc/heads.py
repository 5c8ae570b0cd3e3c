"""The heads of gRPC calls: read as they come, written anew for tritonserver."""

from __future__ import annotations

import re
from dataclasses import dataclass

import hpack

from generator.spec.runtime_rules import CALLER
from hf_triton.ports.admin import GRPC_HEADER
from hf_triton.ports.grpc.frames import MAX_FRAME_BYTES, Headers, ProtocolError, header_block

_KEY = b"authorization"
# triton_grpc_error mixed with good calls ends tritonserver, 24.10 and 26.08 alike. Messages go on
# as they are when they are decoded, and a deadline is the client's: it leaves when it comes.
_NOT_PASSED_ON = {CALLER.encode(), b"triton_grpc_error", b"grpc-encoding", b"grpc-timeout"}
_PSEUDO = ([b":method", b":path", b":scheme"], [b":authority", b":method", b":path", b":scheme"])
_NAME = re.compile(rb":?[0-9a-z_.-]+")
_VALUE = re.compile(rb"[ -~]*")
# Each may come once: whoever reads another one than we do would be told another thing.
_SINGLE = {
    *(_KEY, GRPC_HEADER, b"host", b"content-type", b"content-length", b"te"),
    *(b"grpc-encoding", b"grpc-timeout"),
}
_MAX_KEPT = 256


@dataclass(frozen=True)
class Head:
    """``path`` is the method, "" for what is no call; ``block`` is for Triton, without the key
    and without who the caller is; ``repeated`` is a header that may come once and did not.
    """

    path: str
    authorization: bytes | None
    encoding: bytes
    block: bytes
    has_admin_key: bool
    repeated: str


class HeadReader:
    """The heads that come over one connection, each of which may refer to those before."""

    def __init__(self, *, keeps_keys: bool) -> None:
        self._decoder = hpack.Decoder()
        self._decoder.max_header_list_size = MAX_FRAME_BYTES
        self._leave_out = _NOT_PASSED_ON | ({_KEY} if keeps_keys else set())
        self._kept: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head:
        """Raises ProtocolError where it can't be read."""
        found = self._kept.get(block)
        if found:
            return found
        table = self._decoder.header_table
        before = tuple(map(id, table.dynamic_entries))
        head = self._head(self._decoded(block))
        if tuple(map(id, table.dynamic_entries)) != before:
            self._kept.clear()
        elif len(self._kept) < _MAX_KEPT:
            self._kept[block] = head
        return head

    def skip(self, block: bytes) -> None:
        """Reads one that nobody wants: those after it may refer to it. Raises ProtocolError."""
        self._decoded(block)
        self._kept.clear()

    def _decoded(self, block: bytes) -> Headers:
        try:
            headers = self._decoder.decode(block, raw=True)
        except hpack.HPACKError:
            raise ProtocolError from None
        return [(bytes(name), bytes(value)) for name, value in headers]

    def _head(self, headers: Headers) -> Head:
        by_name = dict(headers)
        path = by_name.get(b":path", b"").decode("latin-1")
        pseudo = sorted(name for name, _ in headers if name.startswith(b":"))
        if pseudo not in _PSEUDO or by_name.get(b":method") != b"POST":
            raise ProtocolError
        if not all(_is_plain(name, value) for name, value in headers):
            raise ProtocolError
        passed_on = [(name, value) for name, value in headers if name not in self._leave_out]
        passed_on.sort(key=lambda header: not header[0].startswith(b":"))
        encoding = by_name.get(b"grpc-encoding", b"identity")
        names = [name for name, _ in headers]
        repeated = [name.decode() for name in sorted(_SINGLE) if names.count(name) > 1]
        return Head(
            *(path, by_name.get(_KEY), encoding, header_block(passed_on)),
            has_admin_key=GRPC_HEADER in by_name,
            repeated=next(iter(repeated), ""),
        )


def _is_plain(name: bytes, value: bytes) -> bool:
    """Whether it is a header as gRPC allows it: nobody reads it otherwise than it is read here."""
    is_text = name.endswith(b"-bin") or _VALUE.fullmatch(value) is not None
    return is_text and _NAME.fullmatch(name) is not None
