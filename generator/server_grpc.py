"""Loads models through Triton's gRPC: there a load keeps nobody waiting.

Over HTTP it keeps one of the server's HTTP threads to itself for as long as it takes, and with it
every client whose connection that thread serves: of 100 clients 33 got no answer meanwhile (24.10).
Over gRPC none did, of HTTP's or gRPC's, nor two loads of each other.
"""

from __future__ import annotations

from typing import Any

from generator.server_api import ADMIN_KEY_HEADER

# Triton puts this before the header's name in --grpc-restricted-protocol.
HEADER_PREFIX = "triton-grpc-protocol-"
_CONNECT_TIMEOUT_S = 2.0


class NoGrpcError(Exception):
    """Nobody answers gRPC there: it is switched off, encrypted, or the server has gone."""


def load(address: str, name: str, admin_key: str) -> str | None:
    """Loads a model, however long it takes; Triton's error where that fails.

    Raises:
        NoGrpcError: nothing was loaded, for nobody answers.
        ConnectionError: the server went away meanwhile.
    """
    # Imported here: it costs as much as all the rest, and most verbs load nothing.
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    # A channel of its own: the library's shared ones wait ever longer before they connect again.
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=options) as channel:
        triton = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = [(HEADER_PREFIX + ADMIN_KEY_HEADER, admin_key)] if admin_key else None
        if not _is_live(triton):
            raise NoGrpcError
        request = service_pb2.RepositoryModelLoadRequest(model_name=name)
        try:
            triton.RepositoryModelLoad(request, metadata=metadata)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and not _is_live(triton):
                raise ConnectionError(error.details()) from None
            return str(error.details())
    return None


def _is_live(triton: Any) -> bool:
    import grpc
    from tritonclient.grpc import service_pb2

    try:
        triton.ServerLive(service_pb2.ServerLiveRequest(), timeout=_CONNECT_TIMEOUT_S)
    except grpc.RpcError:
        return False
    return True
