"""The running server that an apply changes: finds it, and checks that we may change it.

All checks come before any change.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from generator.errors import RepositoryError, ServerError
from generator.spec.access import bracketed
from hf_triton.tritonserver.admin_key import FLAG, VARIABLE
from hf_triton.tritonserver.http_api import ServerApi
from hf_triton.tritonserver.listen import Listen
from hf_triton.tritonserver.state_file import ServerState, running_servers, unreadable_states
from hf_triton.tritonserver.triton_texts import RESTRICTED

_EXTENSION = "model_repository"


@dataclass(frozen=True)
class Target:
    """``name`` is the server in messages; ``is_remote``: it may run on another machine."""

    api: ServerApi
    name: str
    is_remote: bool = False


def running_target(repository: Path, http_port: int | None) -> Target:
    """The server on this machine that serves ``repository``. Raises ServerError if there is none,
    or several and ``http_port`` does not name one of them.
    """
    found = running_servers(repository)
    chosen = [state for state in found if http_port in (None, state.http_port)]
    for path in () if found else unreadable_states(repository):
        raise ServerError(
            f"{path}: can't be read, because another user has started that server: run apply as "
            "that user, or reach the server with --url HOST:PORT and its admin key"
        )
    if not found:
        raise ServerError(
            f"no server runs on {repository}: start one with hf-triton serve, or name one that "
            "reads the same files with --url HOST:PORT"
        )
    if len(chosen) != 1:
        ports = ", ".join(_described(state) for state in found)
        what = "several servers run" if http_port is None else f"none with --http-port {http_port}"
        raise ServerError(f"{repository}: {what}; choose one with --http-port: {ports}")
    state = chosen[0]
    sockets = state.sockets if Path(state.sockets).is_dir() else ""  # a container has its own
    listen = Listen(
        state.host, state.http_port, state.grpc_port, state.metrics_port, sockets=sockets
    )
    api = ServerApi(listen, state.admin_key)
    return Target(api, f"{bracketed(state.host)}:{state.http_port}")


def remote_target(address: str, grpc_port: int, admin_key: str) -> Target:
    """The server whose HTTP is at ``HOST:PORT``; its metrics are looked for behind gRPC's port."""
    host, _, port = address.rpartition(":")
    listen = Listen(host.strip("[]"), int(port), grpc_port, min(grpc_port + 1, 65535))
    return Target(ServerApi(listen, admin_key), address, is_remote=True)


def check(target: Target, repository: Path) -> None:
    """Raises ServerError unless the server is a Triton that lets us load and unload models and
    reads them from ``repository``; RepositoryError if that can't be written.
    """
    try:
        _check_kind(target)
        _check_repository(target, repository)
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise ServerError(f"{target.name}: no server answers there: {reason}") from None


def _check_kind(target: Target) -> None:
    try:
        extensions = target.api.metadata().get("extensions", ())
    except (ServerError, AttributeError):
        extensions = ()
    if _EXTENSION not in extensions:
        raise ServerError(f"{target.name}: what answers there is no tritonserver")
    try:
        target.api.index()
    except ServerError as error:
        if RESTRICTED in str(error):
            raise ServerError(_key_message(target)) from None
        raise ServerError(f"{target.name}: {error}") from None


def _check_repository(target: Target, repository: Path) -> None:
    """Makes a folder for a moment: if the server's index lists it, both use the same repository."""
    probe = repository / f".hf-triton-probe-{secrets.token_hex(8)}"
    try:
        probe.mkdir()
    except OSError as error:
        raise RepositoryError(f"{repository}: can't be written: {error.strerror}") from None
    try:
        if not target.api.lists_folder(probe.name):
            raise ServerError(
                f"{target.name}: this server reads its models from another repository than "
                f"{repository}: nothing was changed"
            )
        refusal = target.api.unload(probe.name)  # does nothing, where it is allowed
    finally:
        probe.rmdir()
    if refusal is not None:
        raise ServerError(
            f"{target.name}: this server loads and unloads nothing on demand ({refusal}): start it "
            "with hf-triton serve, or with --model-control-mode=explicit"
        )


def _key_message(target: Target) -> str:
    if target.api.admin_key:
        return f"{target.name}: the server has another admin key than the one in use here"
    return (
        f"{target.name}: the server changes nothing without its admin key: give the one it was "
        f"started with in {VARIABLE} or with {FLAG} FILE"
    )


def _described(state: ServerState) -> str:
    return f"{state.http_port} (process {state.pid})"
