"""Decides which calls a client of the public gRPC port may make, and how many at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any

from tritonclient.grpc import service_pb2

from hf_triton.ports.bodies import SMALL_BYTES, expanded
from hf_triton.ports.callers import Account
from hf_triton.ports.grpc.messages import checked, model_of
from hf_triton.ports.port import Port, Shared
from hf_triton.ports.refusal import GRPC_ADMIN_HEADER, RefusedError
from hf_triton.ports.triton_calls import INFER, SERVICE, STREAM, Metadata
from hf_triton.runtime.request.request_parameters import CALLER

_METHODS_OF_TRITON = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
_HEALTH = "/grpc.health.v1.Health/Check"
_METHODS = {*(f"{SERVICE}{method.name}" for method in _METHODS_OF_TRITON), _HEALTH}
# Methods that change a server or reach into its memory.
_ADMIN = {one for one in _METHODS if re.search("RepositoryModel|Setting|SharedMemory", one)}
_OPEN = {_HEALTH, f"{SERVICE}ServerLive", f"{SERVICE}ServerReady"}
_READY, _LOAD = f"{SERVICE}ModelReady", f"{SERVICE}RepositoryModelLoad"
_TOLD_BY_LOADED = {f"{SERVICE}ModelMetadata", f"{SERVICE}ModelConfig"}
_KEY = "authorization"
# triton_grpc_error mixed with good calls ends tritonserver, 24.10 and 26.08 alike. The user agent
# is the connection's own.
_NOT_PASSED_ON = {CALLER, GRPC_ADMIN_HEADER, "triton_grpc_error", "user-agent"}


class GrpcPort(Port):
    """State of all calls; ``stop_server`` ends the server once they are answered."""

    stop_server: Callable[[], Coroutine[Any, Any, None]]

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._not_passed_on = _NOT_PASSED_ON | ({_KEY} if self.callers.have_keys else set())

    def begin_stop(self) -> None:
        super().begin_stop()
        self.run(self.stop_server())

    def account(self, method: str, metadata: Metadata, address: str = "") -> Account | None:
        """The account of a caller; None if nothing is counted. Raises RefusedError."""
        if method not in _METHODS:
            raise RefusedError(501, "got a method that this server does not have")
        given = dict[str, Any](metadata)
        # A proxy that reads another one than we do would decide by another key.
        for name in (_KEY, GRPC_ADMIN_HEADER):
            if name in given and sum(name == one for one, _ in metadata) > 1:
                raise RefusedError(400, f"got the header {name} twice")
        if method in _ADMIN:
            key = given.get(GRPC_ADMIN_HEADER, "")
            self.check_admin_key(key.encode(errors="surrogateescape"), GRPC_ADMIN_HEADER)
        if method in _OPEN:
            return None
        key = given.get(_KEY)
        return self.callers.of(None if key is None else key.encode(), address)

    def metadata_for_triton(self, metadata: Metadata, account: Account | None) -> Metadata:
        """The client's own, and the caller's name."""
        found = [header for header in metadata if header[0] not in self._not_passed_on]
        if account and account.alias:
            found.append((CALLER, account.alias))
        return tuple(found)

    def expanded(self, message: bytes) -> bytes:
        """A message as it was before its compression. Raises RefusedError.

        None of Triton's begins as a compressed one does: with a field 15, or one of no type.
        """
        is_zlib = message[:1] == b"x" and int.from_bytes(message[:2], "big") % 31 == 0
        is_compressed = is_zlib or message[:2] == b"\x1f\x8b"
        return expanded(message, self.bodies.max_bytes, "message") if is_compressed else message

    def check(self, method: str, message: bytes) -> str:
        """The model that must be there. Raises RefusedError for what does not go on."""
        if method in (INFER, STREAM):
            model, classified = checked(message)
            self.check_classified(model, classified)
            return model
        if method != _LOAD and len(message) > SMALL_BYTES:
            raise RefusedError(400, f"got {len(message)} bytes, allowed: {SMALL_BYTES}")
        name = model_of(message) if method in _TOLD_BY_LOADED else ""
        return name if self.retries.model(name).is_asleep else ""

    def own_answer(self, method: str, message: bytes) -> bytes | None:
        """Returns an answer for which tritonserver need not be asked: a model that its next request
        has loaded is ready.
        """
        if method != _READY or not self.retries.model(model_of(message)).is_asleep:
            return None
        answer: bytes = service_pb2.ModelReadyResponse(ready=True).SerializeToString()
        return answer
