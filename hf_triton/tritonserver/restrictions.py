"""The user's own flags for tritonserver: which are refused, and how they go together with the
header that names a caller to a model. Knows no process.
"""

from __future__ import annotations

from collections.abc import Sequence

from generator.errors import UsageError
from hf_triton.runtime.request.request_parameters import CALLER

_SHORTEST = len("--http-r")  # Triton takes a flag's beginning for the whole
# The headers of a call that become parameters of it, and the flag's shortest beginning.
_FORWARDING, _SHORTEST_FORWARDING = "--grpc-header-forward-pattern", len("--grpc-he")
# tritonserver listens for the proxies alone; what stands for each flag towards callers.
_OF_SERVE = {
    **{f"--{kind}-address": "--host" for kind in ("http", "grpc", "metrics")},
    **{f"--{kind}-port": f"--{kind}-port before the --" for kind in ("http", "grpc", "metrics")},
    "--grpc-use-ssl": "tls in models.yaml's server: block",
    **dict.fromkeys(
        ("--http-restricted-api", "--grpc-restricted-protocol"),
        "--api-keys-file, and the admin key for the APIs that change a server",
    ),
}
_CALLER_PATTERN = f"(?i:^{CALLER}$)"


def forwarding(arguments: Sequence[str]) -> list[str]:
    """The user's own arguments for tritonserver, with the one by which a gRPC call's caller reaches
    its model: Triton takes one pattern, so a user's own gets an alternative.
    """
    found = [f"{_FORWARDING}={_CALLER_PATTERN}"]
    for argument in arguments:  # the last one of a flag counts
        flag, _, pattern = argument.partition("=")
        if _FORWARDING.startswith(flag) and len(flag) >= _SHORTEST_FORWARDING:
            either = f"(?:{pattern})|{_CALLER_PATTERN}" if pattern else _CALLER_PATTERN
            argument = f"{flag}={either}"
        found.append(argument)
    return found


def refuse_clashes(arguments: Sequence[str]) -> None:
    """Raises UsageError where the user's own arguments for tritonserver move the sockets behind the
    proxies, or close APIs that ``serve`` itself asks.
    """
    for argument in arguments:
        flag = argument.partition("=")[0]  # the rest may hold a key
        for name, instead in _OF_SERVE.items():
            if len(flag) >= _SHORTEST and (name.startswith(flag) or flag.startswith(name)):
                raise UsageError(f"{flag}: leave it out, and use {instead}")
