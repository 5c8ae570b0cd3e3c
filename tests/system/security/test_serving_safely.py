"""A server as ``serve`` starts it: where it listens, what can be read of it, what can be asked."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import shutil
import ssl
import stat
import subprocess
import urllib.request
from pathlib import Path

import pytest
import tritonclient.grpc as grpc_client

from generator.errors import ServerError
from generator.python_modules import run_module
from hf_triton.ports.refusal import HTTP_ADMIN_HEADER
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.state_file import running_servers
from tests.support.served import Served, serve
from tests.support.triton import DEMO_MODEL, free_ports, get
from tests.system.security.conftest import KEY, SECRETS

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}  # as IPv4, and as IPv6 writes that
OUTSIDE = ("..%2f..%2fetc", "%2e%2e", "..", "%2fetc", "..%5c..", "echo%2f..%2fecho", "echo%00")


def repository(served: Served) -> Path:
    return Path(f"/proc/{served.process.pid}/cwd").readlink() / "repository"


@pytest.mark.threat("network-reach")
def test_every_port_listens_on_loopback_alone_unless_asked(served: Served) -> None:
    listening = _listening()
    for flag, port in served.listen.ports().items():
        assert listening[port] <= LOOPBACK, flag


@pytest.mark.threat("admin-key-file")
def test_the_way_to_tritonserver_is_its_owners_alone(served: Served) -> None:
    (file,) = repository(served).glob(".hf-triton-server-*.json")
    assert KEY not in file.read_text()
    (state,) = running_servers(repository(served))
    assert stat.S_IMODE(Path(state.sockets).stat().st_mode) == 0o700


@pytest.mark.threat("umask")
def test_nothing_that_is_written_can_be_changed_by_everybody(tmp_path: Path) -> None:
    """With any umask: a group may share a repository."""
    (tmp_path / "models.yaml").write_text(
        f"models: [{{name: demo, task: text-generation, model: {DEMO_MODEL}}}]"
    )
    command = run_module("hf_triton.cli", "generate")
    subprocess.run(command, cwd=tmp_path, umask=0, check=True, capture_output=True)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "model_repository").rglob("*")}
    assert modes == {0o775, 0o664}


@pytest.mark.threat("admin-key-in-logs")
@pytest.mark.parametrize("path", ["live", "ready", "metrics", "nothing"])
def test_health_shows_no_secret_and_no_path(path: str, served: Served) -> None:
    answer = get(f"http://127.0.0.1:{served.listen.health_port}/{path}")
    text = json.dumps(answer.body)
    assert not any(secret in text for secret in SECRETS.values())
    assert str(repository(served)) not in text


@pytest.mark.threat("admin-key-on-command-line")
def test_models_do_not_inherit_the_servers_keys(served: Served) -> None:
    environment = Path(f"/proc/{served.stub_pid('echo')}/environ").read_text()
    assert "HF_TOKEN=" in environment, "which they load weights with"
    assert "HF_TRITON_ADMIN_KEY" not in environment


@pytest.mark.threat("model-name-in-url")
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_is_a_path_is_no_model(name: str, served: Served) -> None:
    for method, path, refused in (
        ("GET", f"/v2/models/{name}", (400, 404)),
        ("POST", f"/v2/models/{name}/generate", (400, 404)),
        ("POST", f"/v2/repository/models/{name}/load", (400, 404, 500)),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", served.listen.http_port, timeout=180)
        headers = {HTTP_ADMIN_HEADER: KEY}
        connection.request(method, path, "{}" if method == "POST" else None, headers)
        response = connection.getresponse()
        assert response.status in refused, (path, response.read())
        connection.close()


@pytest.mark.threat("admin-key-in-logs")
def test_what_tritonserver_says_when_it_dies_holds_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that writes all it knows: its arguments and its environment."""
    program = tmp_path / "bin" / "tritonserver"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nenv | grep HF_\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HF_TOKEN", SECRETS["HF_TOKEN"])
    log: list[str] = []
    server = TritonServer(tmp_path, free_ports(), verbose=True, write_log=log.append)
    with pytest.raises(ServerError, match="tritonserver did not start") as caught:
        server.start()
    said = "\n".join([*log, str(caught.value)])
    assert "HF_TOKEN=***" in said
    assert SECRETS["HF_TOKEN"] not in said


@pytest.mark.threat("eavesdropping")
def test_every_port_of_callers_speaks_tls_where_it_is_set(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    settings = "{tls: {certificate: certificate.pem, key: key.pem}}"
    listen = dataclasses.replace(free_ports(), openai_port=free_ports().http_port)
    trusted = ssl.create_default_context(cafile=str(certificate))
    with serve(tmp_path, "- {name: echo}", listen=listen, settings=settings) as running:
        running.wait_for("Ctrl-C stops")
        assert f"curl https://127.0.0.1:{listen.http_port}/v2" in running.out
        for path in (
            f"{listen.http_port}/v2/models/echo/ready",
            f"{listen.openai_port}/v1/models",
        ):
            url = f"https://localhost:{path}"
            with urllib.request.urlopen(url, context=trusted, timeout=60) as answer:
                assert answer.status == 200
        address = f"localhost:{running.listen.grpc_port}"
        with grpc_client.InferenceServerClient(
            address, ssl=True, root_certificates=str(certificate)
        ) as client:
            assert client.is_model_ready("echo", client_timeout=180)


def _listening() -> dict[int, set[str]]:
    """The addresses that each port listens on, in hexadecimal (man 5 proc_net_tcp)."""
    found: dict[int, set[str]] = {}
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(file).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # LISTEN
                address, _, port = fields[1].partition(":")
                found.setdefault(int(port, 16), set()).add(address)
    return found
