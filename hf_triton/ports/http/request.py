"""One HTTP request as it comes in, and the bytes in which it goes on to tritonserver."""

from __future__ import annotations

import math
import re

from hf_triton.ports.bodies import ENCODINGS, Bodies, Buffered
from hf_triton.ports.callers import Account
from hf_triton.ports.http.json_bodies import model_and_endpoint
from hf_triton.ports.refusal import HTTP_ADMIN_HEADER, RefusedError
from hf_triton.runtime.request.request_parameters import CALLER

MAX_HEAD_BYTES = 65_536
_MAX_TARGET_BYTES = 8_192
_MAX_HEADERS = 256
_METHODS = (b"GET", b"POST")
_VERSIONS = ("1.0", "1.1")
_IDENTITY = (b"", b"identity")
ADMIN_HEADER = HTTP_ADMIN_HEADER.encode()
# Headers of one connection, and those that are written anew.
_DROPPED = {
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te"),
    *(b"trailer", b"upgrade", CALLER.encode()),
}
# Each may come once.
_NOTED = {
    *(b"host", b"content-type", ADMIN_HEADER),
    *(b"content-length", b"content-encoding", b"inference-header-content-length", b"expect"),
    *(b"authorization", b"origin", b"access-control-request-headers", b"transfer-encoding"),
}
# Those of them that are passed on as they came.
_PASSED_ON = ((b"host", b"Host"), (b"origin", b"Origin"))
_ABSOLUTE = re.compile(rb"https?://([^/?#]+)(/?.*)", re.IGNORECASE)
# https://www.rfc-editor.org/rfc/rfc9112#section-3.2
_HOST = re.compile(rb"(?:\[[0-9a-fA-F:.]+\]|[\w.~!$&'()*+,;=%-]*)(?::\d*)?")
WRONG_HOST = "got a host in another form, allowed: NAME or NAME:PORT"


def is_host(value: bytes) -> bool:
    """True for a host, with a port or without, and for no bytes."""
    return _HOST.fullmatch(value) is not None


class Request:
    """Filled while its head and body come; ``refusal`` is why it does not go on. What takes them
    raises RefusedError.
    """

    def __init__(self, bodies: Bodies) -> None:
        self.method = self.target = self.version = b""
        self.path = ""
        self.lines: list[bytes] = []
        self.noted: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.buffered = Buffered(bodies)  # of the body what tritonserver does not have yet
        self.num_head_bytes = 0
        self.awaits_continue = False  # the client sends its body only when it is told to
        self.account: Account | None = None
        self.model = self.endpoint = ""  # of its path
        self.awaited_model = ""  # which must be there to answer
        self.streams = False  # its answer
        self.call_name = ""  # by which its model, one of ours, knows it
        self.is_last = False  # of its connection
        self.refusal: RefusedError | None = None

    def take_header(self, name: bytes, value: bytes) -> None:
        """Takes a header line, which is passed on or noted for ourselves."""
        self.num_head_bytes += len(name) + len(value)
        if len(self.lines) > 4 * _MAX_HEADERS or self.num_head_bytes > MAX_HEAD_BYTES:
            text = f"got a head of more than {MAX_HEAD_BYTES} bytes or {_MAX_HEADERS} headers"
            raise RefusedError(431, text)
        lower = name.lower()
        if lower in _NOTED:
            if lower in self.noted:
                raise RefusedError(400, f"got the header {lower.decode()} twice")
            self.noted[lower] = value
        elif lower not in _DROPPED:
            self.lines += (name, b": ", value, b"\r\n")

    def end_head(self, method: bytes, version: str, keep_alive: bool) -> None:
        """Judges what can be judged before a body comes."""
        self.method, self.version = method, version.encode()
        self.is_last = not keep_alive or version != "1.1"
        self.awaits_continue = version != "1.0" and b"expect" in self.noted
        self._judge_host()
        self.path = self.target.partition(b"?")[0].decode("latin-1")
        self.model, self.endpoint = model_and_endpoint(self.path)
        if self.target[:1] != b"/" or not self.target.isascii():
            raise RefusedError(400, "got a request target that is not a path in ASCII")
        if len(self.target) > _MAX_TARGET_BYTES:
            raise RefusedError(414, f"got a path of more than {_MAX_TARGET_BYTES} bytes")
        if version not in _VERSIONS:
            raise RefusedError(505, f"got HTTP/{version}, allowed: HTTP/1.1, HTTP/1.0")
        if version == "1.0" and self.endpoint == "generate_stream":  # which knows no chunks
            raise RefusedError(505, "got HTTP/1.0, but a stream needs HTTP/1.1")
        if method not in _METHODS and method != b"OPTIONS":
            text = f"got {method.decode()[:20]}, allowed: GET, POST"
            raise RefusedError(405, text, {"Allow": "GET, POST"})
        if self.encoding not in (*_IDENTITY, *ENCODINGS):
            text = "got a body with an unknown Content-Encoding; allowed: gzip, deflate, identity"
            raise RefusedError(415, text, {"Accept-Encoding": "gzip, deflate, identity"})
        if self.noted.get(b"expect", b"100-continue").lower() != b"100-continue":
            raise RefusedError(417, "got an Expect header, allowed: 100-continue")

    def _judge_host(self) -> None:
        """A target with a host in it counts, whatever the header says."""
        host = self.noted.get(b"host")
        if host is None and self.version == b"1.1":
            raise RefusedError(400, "got no Host header")
        if absolute := _ABSOLUTE.fullmatch(self.target):
            path = absolute[2]
            self.target = path if path.startswith(b"/") else b"/" + path
            self.noted[b"host"] = absolute[1]
        if not (is_host(host or b"") and is_host(self.noted.get(b"host", b""))):
            raise RefusedError(400, WRONG_HOST)

    def take_body(self, piece: bytes) -> None:
        if self.method == b"POST":  # other methods' bodies are not read
            self.buffered.take(len(piece))
            self.body += piece

    def free(self) -> None:
        """Drops the body, and no longer counts its bytes."""
        self.buffered.free()
        self.body = bytearray()

    def text_of(self, name: bytes) -> str | None:
        """A header that was noted."""
        value = self.noted.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def encoding(self) -> bytes:
        """The Content-Encoding in small letters."""
        return self.noted.get(b"content-encoding", b"").lower()

    @property
    def length(self) -> int:
        """The Content-Length, 0 without."""
        return int(self.noted.get(b"content-length", b"0"))

    @property
    def has_body(self) -> bool:
        """True if a body comes after the head."""
        return self.length > 0 or b"transfer-encoding" in self.noted

    def framing(self) -> bytes:
        """A head that says no more than how long the body is."""
        encoding = self.noted.get(b"transfer-encoding")
        line = b"Content-Length: %d" % self.length
        if encoding is not None:
            line = b"Transfer-Encoding: " + encoding
        return b"POST / HTTP/1.1\r\n" + line + b"\r\n\r\n"

    def head_length(self, num_bytes: int) -> int | None:
        """Bytes of JSON before binary data, in a body of ``num_bytes``; None where all is JSON.
        Raises RefusedError.
        """
        text = self.noted.get(b"inference-header-content-length")
        if text is None:
            return None
        length = int(text) if text.isdigit() and len(text) < 16 else math.inf
        if length > num_bytes:
            shown = text[:32].decode("latin-1")
            told = f"Inference-Header-Content-Length: got {shown}, of {num_bytes} bytes"
            raise RefusedError(400, told)
        return int(length)

    def bytes_for_triton(self, body: bytes, head_length: int | None, with_key: bool) -> bytes:
        """The request in one piece; ``with_key``: the Authorization header is not for us."""
        pieces = [self.method, b" ", self.target, b" HTTP/", self.version, b"\r\n", *self.lines]
        for noted, name in _PASSED_ON:
            if noted in self.noted:
                pieces += (name, b": ", self.noted[noted], b"\r\n")
        if with_key and b"authorization" in self.noted:
            pieces += (b"Authorization: ", self.noted[b"authorization"], b"\r\n")
        if head_length is not None:
            pieces.append(b"Inference-Header-Content-Length: %d\r\n" % head_length)
        if self.method == b"POST":
            # Triton would parse a form of any other type, byte by byte down its stack.
            kind = b"json" if head_length is None else b"octet-stream"
            pieces.append(
                b"Content-Type: application/%b\r\nContent-Length: %d\r\n" % (kind, len(body))
            )
        pieces += (b"\r\n", body)
        return b"".join(pieces)
