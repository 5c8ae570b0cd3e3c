"""The proxy of ``hf-triton serve``: a child process."""

from __future__ import annotations

from functools import partial

from generator.python_modules import run_module
from hf_triton.ports.settings import Access, ProxySettings
from hf_triton.tritonserver.child_process import ChildProcess, environment_for
from hf_triton.tritonserver.listen import HeldPorts, Listen
from hf_triton.tritonserver.restart_policy import RestartPolicy

_FLAGS = ("--http-port", "--metrics-port", "--grpc-port")


def proxy(
    listen: Listen, access: Access, policy: RestartPolicy, admin_key: str = ""
) -> ChildProcess:
    """The one in front of the sockets in ``listen.sockets``."""
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
    return ChildProcess(
        "the proxy of Triton's ports",
        run_module("hf_triton.ports"),
        partial(environment_for, settings),
        policy,
        HeldPorts(listen, _FLAGS),
    )
