"""The ports of ``hf-triton serve``: a child process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from generator.python_modules import run_module
from hf_triton.ports.settings import EVERYBODY, Access, OpenAiPort, ProxySettings
from hf_triton.tritonserver.child_process import ChildProcess, environment_for
from hf_triton.tritonserver.listen import HeldPorts, Listen


def proxy(
    listen: Listen,
    access: Access = EVERYBODY,
    admin_key: str = "",
    openai: OpenAiPort | None = None,
    repository: Path = Path(),
) -> ChildProcess:
    """Triton's ports, in front of the sockets in ``listen.sockets`` where there are any, and
    OpenAI's.
    """
    left = listen.abandoned_requests
    settings = ProxySettings(listen, openai, left, access, admin_key, repository)
    flags = [*(listen.triton_ports() if listen.sockets else ()), *["--openai-port"] * bool(openai)]
    return ChildProcess(
        "the ports' process",
        run_module("hf_triton.ports.serving"),
        partial(environment_for, settings),
        HeldPorts(listen, flags),
    )
