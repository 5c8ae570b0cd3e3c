"""Who asks: the APIs of Triton that need the admin key, the header that names a caller to a model,
and the flags for both.

What a client needs stays open: inference, health, metadata, configurations, statistics. Knows no
process. https://github.com/triton-inference-server/server/blob/main/docs/customization_guide/
inference_protocols.md#limit-endpoint-access-beta
"""

from __future__ import annotations

from collections.abc import Sequence

from generator.errors import UsageError
from hf_triton.runtime.request.request_parameters import CALLER
from hf_triton.tritonserver.http_api import ADMIN_KEY_HEADER

# What changes a server or reaches into its memory.
ADMIN_APIS = ("model-repository", "shared-memory", "trace", "logging")
_HTTP_FLAG = "--http-restricted-api"
_GRPC_FLAG = "--grpc-restricted-protocol"
_SHORTEST = len("--http-r")  # Triton takes a flag's beginning for the whole
# Which headers of a request become parameters of it, with the shortest beginning of each flag.
_FORWARDING = {
    "--http-header-forward-pattern": len("--http-h"),
    "--grpc-header-forward-pattern": len("--grpc-he"),
}
# tritonserver listens for the proxies alone; what stands for each flag towards callers.
_OF_SERVE = {
    **{f"--{kind}-address": "--host" for kind in ("http", "grpc", "metrics")},
    **{f"--{kind}-port": f"--{kind}-port before the --" for kind in ("http", "grpc", "metrics")},
    "--grpc-use-ssl": "tls in models.yaml's server: block",
}
_CALLER_PATTERN = f"(?i:^{CALLER}$)"


def flags(key: str) -> list[str]:
    """The flags for tritonserver that close ADMIN_APIS to whoever lacks ``key``."""
    rule = f"{','.join(ADMIN_APIS)}:{ADMIN_KEY_HEADER}={key}"
    return [f"{_HTTP_FLAG}={rule}", f"{_GRPC_FLAG}={rule}"]


def forwarding(arguments: Sequence[str]) -> list[str]:
    """The user's own arguments for tritonserver, with those by which a request's caller reaches its
    model: Triton holds each to one pattern, so a user's own gets an alternative.
    """
    found = [f"{name}={_CALLER_PATTERN}" for name in _FORWARDING]
    for argument in arguments:  # the last one of a flag counts
        flag, _, pattern = argument.partition("=")
        lengths = (num for name, num in _FORWARDING.items() if name.startswith(flag))
        if any(len(flag) >= num for num in lengths):
            either = f"(?:{pattern})|{_CALLER_PATTERN}" if pattern else _CALLER_PATTERN
            argument = f"{flag}={either}"
        found.append(argument)
    return found


def refuse_clashes(arguments: Sequence[str], *, has_key: bool) -> None:
    """Raises UsageError where the user's own arguments for tritonserver close an API that is closed
    already, or one that ``serve`` itself must reach (others may be closed so), or move the sockets
    behind the proxies.
    """
    for argument in arguments:
        flag, _, value = argument.partition("=")
        for name, instead in _OF_SERVE.items():
            if len(flag) >= _SHORTEST and (name.startswith(flag) or flag.startswith(name)):
                raise UsageError(f"{flag}: leave it out, and use {instead}")
        if len(flag) < _SHORTEST or not any(
            name.startswith(flag) for name in (_HTTP_FLAG, _GRPC_FLAG)
        ):
            continue
        for api in value.partition(":")[0].split(","):  # the rest holds a key
            if reason := _clash(api.strip(), has_key):
                raise UsageError(f"{flag}: {api.strip()} {reason}")


def _clash(api: str, has_key: bool) -> str:
    if has_key and api in ADMIN_APIS:
        return (
            "is restricted already, by the key of HF_TRITON_ADMIN_KEY or --admin-key-file: leave "
            "it out here, or add --open-admin-apis to restrict it yourself"
        )
    if api == "model-repository":
        return "is what serve loads models through: leave it out, and --open-admin-apis too"
    return "is what serve itself asks, without a key: leave it out" if api == "health" else ""
