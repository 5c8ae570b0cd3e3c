"""The proxies of ``hf-triton serve``: child processes."""

from __future__ import annotations

from functools import partial

from generator.python_modules import run_module
from hf_triton.ports.settings import Access, ProxySettings
from hf_triton.tritonserver.child_process import ChildProcess, environment_for
from hf_triton.tritonserver.listen import HeldPorts, Listen
from hf_triton.tritonserver.restart_policy import RestartPolicy

_KINDS = {
    "http": ("HTTP", ("--http-port", "--metrics-port")),
    "grpc": ("gRPC", ("--grpc-port",)),
}


def proxies(
    listen: Listen, access: Access, policy: RestartPolicy, admin_key: str = ""
) -> tuple[ChildProcess, ...]:
    """One for HTTP and metrics, one for gRPC: in front of the sockets in ``listen.sockets``."""
    settings = ProxySettings(
        host=listen.host,
        http_port=listen.http_port,
        metrics_port=listen.metrics_port,
        grpc_port=listen.grpc_port,
        http_socket=listen.http_socket,
        metrics_socket=listen.metrics_socket,
        grpc_socket=listen.grpc_socket,
        abandoned_requests=listen.abandoned_requests,
        access=access,
        admin_key=admin_key,
    )

    return tuple(
        ChildProcess(
            f"the proxy of Triton's {name} port",
            run_module("hf_triton.ports", kind),
            partial(environment_for, settings),
            policy,
            HeldPorts(listen, flags),
        )
        for kind, (name, flags) in _KINDS.items()
    )
