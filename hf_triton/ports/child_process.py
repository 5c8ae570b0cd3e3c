"""The ports of ``hf-triton serve``: a child process."""

from __future__ import annotations

from functools import partial

from generator.python_modules import run_module
from hf_triton.ports.settings import EVERYBODY, Access, OpenAiPort, ProxySettings, TritonPorts
from hf_triton.tritonserver.child_process import ChildProcess, environment_for
from hf_triton.tritonserver.listen import HeldPorts, Listen
from hf_triton.tritonserver.restart_policy import RestartPolicy


def proxy(
    listen: Listen,
    access: Access = EVERYBODY,
    policy: RestartPolicy | None = None,
    admin_key: str = "",
    openai: OpenAiPort | None = None,
) -> ChildProcess:
    """Triton's ports, in front of the sockets in ``listen.sockets`` where there are any, and
    OpenAI's.
    """
    triton = TritonPorts(
        http_port=listen.http_port,
        metrics_port=listen.metrics_port,
        grpc_port=listen.grpc_port,
        http_socket=listen.http_socket,
        metrics_socket=listen.metrics_socket,
        grpc_socket=listen.grpc_socket,
    )
    settings = ProxySettings(
        listen.host,
        triton if listen.sockets else None,
        openai,
        listen.abandoned_requests,
        access,
        admin_key,
    )
    flags = [*listen.triton_ports()] if listen.sockets else []
    return ChildProcess(
        "the ports' process",
        run_module("hf_triton.ports"),
        partial(environment_for, settings),
        policy,
        HeldPorts(listen, [*flags, *(["--openai-port"] if openai else [])]),
    )
