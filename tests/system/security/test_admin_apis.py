"""The admin key on a real server: calls that need it, calls that don't, and who can see it."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from hf_triton.ports.refusal import GRPC_ADMIN_HEADER, HTTP_ADMIN_HEADER
from tests.support.served import Served
from tests.support.tested_server import skip_without_tracing
from tests.system.security.conftest import KEY

CLOSED: dict[str, tuple[str, str]] = {  # the path, and a body; GET where there is none
    "load": ("repository/models/echo/load", "{}"),
    "load with a config of the caller's": (
        "repository/models/echo/load",
        '{"parameters":{"config":"{}"}}',
    ),
    "shared memory": ("systemsharedmemory/region/x/register", '{"key":"/x","byte_size":8}'),
    "shared memory of a GPU": ("cudasharedmemory/status", ""),
    "trace": ("trace/setting", '{"trace_level":["OFF"]}'),
    "trace of a model": ("models/echo/trace/setting", ""),
    "trace of a version": ("models/echo/versions/1/trace/setting", ""),
    "log": ("logging", '{"log_verbose_level":0}'),
    "unload": ("repository/models/echo/unload", "{}"),
}
OPEN: dict[str, tuple[str, str]] = {
    "server": ("", ""),
    "live": ("health/live", ""),
    "ready": ("models/echo/ready", ""),
    "metadata": ("models/echo", ""),
    "config": ("models/echo/config", ""),
    "statistics": ("models/stats", ""),
    "index": ("repository/index", "{}"),
    "inference": ("models/echo/generate", '{"text_input":"hi"}'),
}
Call = Callable[[grpc_client.InferenceServerClient, dict[str, str]], Any]
GRPC_CLOSED: dict[str, Call] = {
    "load": lambda client, headers: client.load_model("echo", headers=headers),
    "shared memory": lambda client, headers: client.get_system_shared_memory_status(
        headers=headers
    ),
    "trace": lambda client, headers: client.get_trace_settings(headers=headers),
    "log": lambda client, headers: client.get_log_settings(headers=headers),
}
GRPC_OPEN: dict[str, Call] = {
    "ready": lambda client, headers: client.is_model_ready("echo"),
    "index": lambda client, headers: client.get_model_repository_index(),
    "metadata": lambda client, headers: client.get_model_metadata("echo"),
    "config": lambda client, headers: client.get_model_config("echo"),
    "statistics": lambda client, headers: client.get_inference_statistics("echo"),
}


def ask(served: Served, path: str, body: str, key: str = "") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", served.listen.http_port, timeout=180)
    headers = {HTTP_ADMIN_HEADER: key} if key else {}
    target = f"/v2/{path}".rstrip("/")
    connection.request("POST" if body else "GET", target, body or None, headers)
    response = connection.getresponse()
    assert KEY not in response.read().decode()
    connection.close()
    return response.status


@pytest.mark.threat("repository-api", "register-memory", "trace-and-log-settings")
@pytest.mark.parametrize("name", CLOSED)
def test_http_calls_that_change_the_server_need_the_admin_key(served: Served, name: str) -> None:
    path, body = CLOSED[name]
    assert ask(served, path, body) == 403
    assert ask(served, path, body, "not-the-key") == 403
    assert ask(served, path, body, KEY[:-1]) == 403


@pytest.mark.threat("repository-api")
@pytest.mark.parametrize(
    "path",
    [
        *("%72epository/models/echo/unload", "/repository/models/echo/unload"),
        *("./repository/models/echo/unload", "x/../repository/models/echo/unload"),
        *("repository%2fmodels/echo/unload", ";/repository/models/echo/unload"),
    ],
)
def test_no_other_spelling_of_a_path_leads_there(served: Served, path: str) -> None:
    assert ask(served, path, "{}") in (400, 403, 404)
    assert ask(served, "models/echo/ready", "") == 200


@pytest.mark.parametrize("name", ["load", "shared memory of a GPU", "trace", "log"])
def test_http_calls_with_the_admin_key_are_answered(served: Served, name: str) -> None:
    if name == "trace":
        skip_without_tracing()
    assert ask(served, *CLOSED[name], KEY) == 200
    assert ask(served, *CLOSED["shared memory"], KEY) != 403, "there is no such region, that is all"


@pytest.mark.threat("read-only-apis", "closed-apis-break-clients")
@pytest.mark.parametrize("name", OPEN)
def test_http_calls_that_clients_need_are_open(served: Served, name: str) -> None:
    assert ask(served, *OPEN[name]) == 200


@pytest.mark.threat("repository-api", "register-memory")
@pytest.mark.parametrize("name", GRPC_CLOSED)
def test_grpc_calls_that_change_the_server_need_the_admin_key(served: Served, name: str) -> None:
    with grpc_client.InferenceServerClient(f"127.0.0.1:{served.listen.grpc_port}") as client:
        for headers in ({}, {HTTP_ADMIN_HEADER: KEY}, {GRPC_ADMIN_HEADER: "not-the-key"}):
            with pytest.raises(InferenceServerException, match="This protocol is restricted"):
                GRPC_CLOSED[name](client, headers)
        if name == "trace":
            skip_without_tracing()
        GRPC_CLOSED[name](client, {GRPC_ADMIN_HEADER: KEY})


@pytest.mark.threat("closed-apis-break-clients")
@pytest.mark.parametrize("name", GRPC_OPEN)
def test_grpc_calls_that_clients_need_are_open(served: Served, name: str) -> None:
    with grpc_client.InferenceServerClient(f"127.0.0.1:{served.listen.grpc_port}") as client:
        assert GRPC_OPEN[name](client, {})


@pytest.mark.threat("admin-key-on-command-line")
def test_the_admin_key_is_on_no_command_line_and_in_no_environment_of_a_model(
    served: Served,
) -> None:
    pids = served.server_pids()
    assert len(pids) >= 3  # the guard, tritonserver, a stub
    readable = [*Path("/proc").glob("[0-9]*/cmdline"), *(Path(f"/proc/{p}/environ") for p in pids)]
    assert not any(KEY in _text(path) for path in readable)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:  # it has ended, or is another user's
        return ""
