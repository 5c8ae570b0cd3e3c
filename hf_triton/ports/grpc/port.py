"""What the connections of the public gRPC port share: who may ask what, and how much at once."""

from __future__ import annotations

from tritonclient.grpc import service_pb2

from generator.spec.runtime_rules import CALLER
from hf_triton.ports.abandoned_requests import AbandonedRequests
from hf_triton.ports.admin import GRPC_HEADER, needs_key
from hf_triton.ports.callers import Account
from hf_triton.ports.grpc.call import Call
from hf_triton.ports.grpc.heads import Head
from hf_triton.ports.grpc.messages import Output, checked, model_of
from hf_triton.ports.grpc.triton import GrpcTriton
from hf_triton.ports.port import SMALL_BYTES, Port
from hf_triton.ports.refusal import NO_METHOD, RefusedError
from hf_triton.ports.repeats import Repeats
from hf_triton.ports.settings import Access

_SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
_PREFIX = f"/{_SERVICE.full_name}/"
_HEALTH = "/grpc.health.v1.Health/Check"
_STREAM, _INFER, _LOAD = (
    f"{_PREFIX}{name}" for name in ("ModelStreamInfer", "ModelInfer", "RepositoryModelLoad")
)
_READY, *_TOLD_BY_LOADED = (
    f"{_PREFIX}{name}" for name in ("ModelReady", "ModelMetadata", "ModelConfig")
)
_INDEX = f"{_PREFIX}RepositoryIndex"
# What changes a server or reaches into its memory.
_ADMIN = {
    *(f"{_PREFIX}RepositoryModel{what}" for what in ("Load", "Unload")),
    *(
        f"{_PREFIX}{kind}SharedMemory{what}"
        for kind in ("System", "Cuda")
        for what in ("Status", "Register", "Unregister")
    ),
    *(f"{_PREFIX}{what}" for what in ("TraceSetting", "LogSettings")),
}
_METHODS = {f"{_PREFIX}{method.name}" for method in _SERVICE.methods} | {_HEALTH}
_OPEN = {_HEALTH, f"{_PREFIX}ServerLive", f"{_PREFIX}ServerReady"}
_DESCRIPTORS_EACH = 2  # a client's connection, and its own to tritonserver


class GrpcPort(Port):
    """What the connections of the port share."""

    def __init__(
        self,
        access: Access,
        socket: str,
        triton: GrpcTriton,
        left: AbandonedRequests,
        admin_key: str = "",
        repeats: Repeats | None = None,
    ) -> None:
        super().__init__(access, admin_key, _DESCRIPTORS_EACH, repeats)
        self.socket, self.triton, self.left = socket, triton, left

    def admit(self, head: Head, address: str) -> Account | None:
        """Whose call it is, which counts from now on. Raises RefusedError."""
        if head.path not in _METHODS:
            raise RefusedError(501, NO_METHOD)
        if head.repeated:
            raise RefusedError(400, f"got the header {head.repeated} twice")
        if head.path in _OPEN:
            return None
        account = self.callers.of(head.authorization, address)
        if self._admin_key and head.path in _ADMIN and not head.has_admin_key:
            raise needs_key(GRPC_HEADER)
        self.callers.enter(account)
        return account

    def own_headers(self, call: Call) -> list[tuple[bytes, bytes]]:
        """What the proxy tells tritonserver: who the caller is, and of the index that it may be
        read.
        """
        found = []
        if call.account and call.account.alias:
            found.append((CALLER.encode(), call.account.alias.encode()))
        if self._admin_key and call.head.path == _INDEX and not call.head.has_admin_key:
            found.append((GRPC_HEADER, self._admin_key))
        return found

    def is_stream(self, call: Call) -> bool:
        """Whether it may have several requests."""
        return call.head.path == _STREAM

    def check(self, call: Call, message: bytes) -> list[Output]:
        """The outputs to be classified. Raises RefusedError for what does not go on."""
        path = call.head.path
        if call.num_sent:
            self._count_another(call)
        if path in (_INFER, _STREAM):
            # Without keys it may be an OpenAI API that asks, and knows them (--triton-url).
            may_name_caller = not self.callers.have_keys
            call.model, classified = checked(message, may_name_caller=may_name_caller)
            call.asks_ours = self.repeats.is_ours(call.model)
            return classified
        if path in _TOLD_BY_LOADED and self.repeats.is_asleep(name := model_of(message)):
            call.model = name
        if path != _LOAD and len(message) > SMALL_BYTES:
            text = f"got {len(message)} bytes, allowed: {SMALL_BYTES}"
            raise RefusedError(400, text)
        return []

    def own_answer(self, call: Call, message: bytes) -> bytes | None:
        """What is answered without asking tritonserver: a model that its next request has loaded
        is ready.
        """
        if call.head.path != _READY or not self.repeats.is_asleep(model_of(message)):
            return None
        answer: bytes = service_pb2.ModelReadyResponse(ready=True).SerializeToString()
        return answer

    def _count_another(self, call: Call) -> None:
        if not self.is_stream(call):
            raise RefusedError(400, "got more than one request, allowed: one")
        if call.account:
            call.account.leave()
            try:
                self.callers.enter(call.account)
            except RefusedError:
                call.account.num_running += 1  # the call itself goes on
                raise

    def hold(self, call: Call) -> None:
        """Counts what there is of a call. Raises RefusedError where that is too much."""
        self.release(call)
        if not self.has_room(0, call.num_held):
            raise RefusedError(503, "too many large requests come at once; try again")

    def release(self, call: Call) -> None:
        """Counts what is left of a call."""
        num_held = len(call.incoming) + max(len(call.pending), len(call.payload or b""))
        self.num_buffered += num_held - call.num_held
        call.num_held = num_held
