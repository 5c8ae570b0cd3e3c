"""The calls of Triton's API that running a server needs: over HTTP, but loads over gRPC. Knows no
process.

https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from generator.errors import ServerError
from hf_triton.tritonserver.listen import Listen
from hf_triton.tritonserver.triton_texts import READY, one_line

# As many as Triton loads at once by default (--model-load-thread-count).
NUM_LOADERS = 4
_CONNECT_TIMEOUT_S = 2.0
_NUM_TRIES = 10

T = TypeVar("T")
# Triton waits 5 s for a model that does not say whether it is ready (from 26.03 on).
_READY_TIMEOUT_S = 8.0
_METRICS_TIMEOUT_S = 5.0
# Prometheus' text format.
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class ModelVersion(msgspec.Struct, frozen=True, rename={"model": "name"}):
    """One version in the server's index; ``state`` is READY, UNLOADING, UNAVAILABLE or LOADING."""

    model: str
    version: str = ""
    state: str = ""
    reason: str = ""


class Sample(NamedTuple):
    """A metric, its labels and its value."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class ServerApi:
    """A server's API, at its Unix sockets where it has some. Every call raises OSError if it can't
    be reached.

    Loads go over gRPC. Over HTTP a load blocks one of Triton's HTTP threads until it ends, and with
    it every client whose connection that thread serves: of 100 clients 33 got no answer meanwhile
    (24.10).
    """

    listen: Listen
    answer_timeout_s: float = 10.0

    def is_live(self) -> bool:
        return self._call("GET", "/v2/health/live", timeout_s=2)[0] == 200

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Returns whether a model, or one version of it, is loaded and, from 26.03 on, says that it
        is ready; one that does not say is not.
        """
        path = f"{_model_path(name, version)}/ready"
        return self._call("GET", path, timeout_s=_READY_TIMEOUT_S)[0] == 200

    def load(self, name: str) -> str | None:
        """Loads a model, however long it takes; the reason in one line where that fails."""
        error = load_over_grpc(self.listen.triton_grpc, name)
        return None if error is None else one_line(error)

    def unload(self, name: str) -> str | None:
        """Asks for a model to be unloaded once its requests are answered, and does not wait for
        that; the reason in one line where it is refused.
        """
        path = f"/v2/repository/models/{_quoted(name)}/unload"
        status, body = self._call("POST", path, timeout_s=None)
        return None if status == 200 else _error(status, body)

    def index(self) -> list[ModelVersion]:
        """Every version that the server knows, loaded or not any more. Raises ServerError."""
        path = "/v2/repository/index"
        status, body = self._call("POST", path, timeout_s=self.answer_timeout_s)
        if status != 200:
            raise ServerError(f"{path}: {_error(status, body)}")
        return [one for one in _parsed(body, list[ModelVersion]) if one.version]

    def ready_versions(self) -> list[tuple[str, str]]:
        """The models and their versions that are ready. Raises ServerError."""
        return [(one.model, one.version) for one in self.index() if one.state == READY]

    def model_config(self, name: str, version: str = "") -> dict[str, Any] | None:
        """The configuration that a loaded model runs with, or one version of it; None of one that
        is not loaded.
        """
        path = f"{_model_path(name, version)}/config"
        status, body = self._call("GET", path, timeout_s=self.answer_timeout_s)
        return _parsed(body, dict[str, Any]) if status == 200 else None

    def metrics(self) -> list[Sample]:
        """Its /metrics; empty where it has none, or none at that port."""
        listen = self.listen
        at = listen.metrics_port, listen.metrics_socket
        with contextlib.suppress(OSError, UnicodeDecodeError):
            status, body = self._call("GET", "/metrics", _METRICS_TIMEOUT_S, at)
            return parse_metrics(body.decode()) if status == 200 else []
        return []

    def _call(
        self, method: str, path: str, timeout_s: float | None, at: tuple[int, str] | None = None
    ) -> tuple[int, bytes]:
        """``at``: another port than HTTP's, and its socket."""
        port, socket_path = at or (self.listen.http_port, self.listen.http_socket)
        connection = (
            _UnixConnection(socket_path, timeout_s)
            if self.listen.sockets
            else http.client.HTTPConnection(self.listen.client_host(), port, timeout=timeout_s)
        )
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:  # the server went away in the middle
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()


def parse_metrics(text: str) -> list[Sample]:
    """The samples of a server's /metrics, without the buckets of histograms."""
    found = []
    for line in text.splitlines():
        if (match := _LINE.fullmatch(line)) and not match[1].endswith("_bucket"):
            labels = dict(_LABEL.findall(match[2] or ""))
            with contextlib.suppress(ValueError):
                found.append(Sample(match[1], labels, float(match[3])))
    return found


def patiently(ask: Callable[[], T]) -> T:
    """Asks again where no answer comes: a load keeps one of the server's HTTP threads busy, and a
    connection that lands on it waits as long.
    """
    for _ in range(_NUM_TRIES - 1):
        with contextlib.suppress(TimeoutError):
            return ask()
    return ask()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _parsed(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except ValueError as error:
        raise ServerError("the server's answer is not JSON: it is not tritonserver") from error


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _model_path(name: str, version: str) -> str:
    return f"/v2/models/{_quoted(name)}" + (f"/versions/{version}" if version else "")


def error_in(body: bytes | str) -> str:
    """The message in an error of Triton's; "" where there is none."""
    try:
        return str(msgspec.json.decode(body)["error"])
    except (ValueError, KeyError, TypeError):
        return ""


def _error(status: int, body: bytes) -> str:
    text = error_in(body) or body.decode(errors="replace")
    return one_line(text or f"HTTP status {status}")


def load_over_grpc(address: str, name: str) -> str | None:
    """Loads a model, however long it takes; Triton's error where that fails. Raises ConnectionError
    if the server is not there, or went away meanwhile.
    """
    # Imported here: it costs as much as all the rest, and most verbs load nothing.
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    # A channel of its own: the library's shared ones wait ever longer before they connect again.
    # And straight to the server, as HTTP goes, through no proxy.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as channel:
        triton = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.RepositoryModelLoadRequest(model_name=name)
        try:
            triton.RepositoryModelLoad(request)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                try:
                    triton.ServerLive(service_pb2.ServerLiveRequest(), timeout=_CONNECT_TIMEOUT_S)
                except grpc.RpcError:
                    raise ConnectionError(error.details()) from None
            return str(error.details())
    return None
