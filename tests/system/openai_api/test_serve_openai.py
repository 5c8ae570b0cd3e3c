"""``hf-triton serve --openai-port`` from outside. OpenAI's API leaves its echo models out."""

from __future__ import annotations

import os
import signal
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.served import Served, serve
from tests.support.triton import Answer, eventually, free_ports, get

KEY = {"HF_TRITON_API_KEYS": "a the-secret-key-of-a"}


def children(served: Served) -> list[int]:
    """The process of the ports."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
            line = (folder / "cmdline").read_text()
        except OSError:
            continue
        if int(parent) == served.process.pid and "hf_triton.ports" in line:
            found.append(int(folder.name))
    return found


def test_the_api_lives_and_ends_with_its_triton(tmp_path: Path) -> None:
    port = free_ports().http_port
    url = f"http://127.0.0.1:{port}"
    arguments = (f"--openai-port={port}",)
    with serve(tmp_path, "- name: plain\n", *arguments, environment=KEY) as served:
        served.wait_for("Ctrl-C stops")
        assert f"OpenAI's API {url}/v1" in served.err
        assert f"playground {url}/playground" in served.err
        assert "<!doctype html>" in get(f"{url}/playground").body
        assert get(f"{url}/health") == Answer(200, {"status": "ok"})
        assert get(f"{url}/v1/models").status == 401
        environment = Path(f"/proc/{served.tritonserver_pid()}/environ").read_text()
        assert "secret-key" not in environment, "models have no business with it"
        asked = urllib.request.Request(
            f"{url}/metrics", headers={"Authorization": "Bearer the-secret-key-of-a"}
        )
        with urllib.request.urlopen(asked, timeout=10) as found:
            assert b"nv_inference_count" in found.read()

        killed = [kill_api(served), kill_api(served)]
        assert (
            "the ports' process died (exit code -9) and is started again in 1 s (2 deaths in"
            in served.err
        )
        assert not {*killed} & {*children(served)}
        assert get(f"{url}/v1/models").status == 401

        served.signal(signal.SIGTERM)
        assert served.exit_code() == 0
        assert "secret-key" not in served.out + served.err
        assert served.leaves_nothing()
        with pytest.raises(OSError, match="refused"):
            get(f"{url}/health")


def test_a_caller_s_requests_count_once_whichever_port_they_come_to(tmp_path: Path) -> None:
    listen = replace(free_ports(), openai_port=free_ports().http_port)
    settings = "{limits: {requests_per_minute: 6}}"
    with serve(tmp_path, "- name: plain\n", listen=listen, settings=settings) as served:
        served.wait_for("Ctrl-C stops")
        openai = f"http://127.0.0.1:{listen.openai_port}/v1/models"
        with grpc.insecure_channel(listen.address(listen.grpc_port)) as channel:
            metadata = service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerMetadata
            for _ in range(2):
                assert served.generate("plain", "x").status == 200
                assert get(openai).status == 200
                metadata(service_pb2.ServerMetadataRequest())
            assert served.generate("plain", "x").status == 429
            assert get(openai).status == 429
            with pytest.raises(grpc.RpcError) as refused:
                metadata(service_pb2.ServerMetadataRequest())
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def kill_api(served: Served) -> int:
    """Returns once there is another one."""
    back = "the ports' process is back"
    times = served.err.count(back)
    [child] = children(served)
    os.kill(child, signal.SIGKILL)
    assert eventually(lambda: served.err.count(back) > times), served.err
    return child


@pytest.mark.threat("hanging-processes")
def test_an_api_that_hangs_or_does_not_start_is_told_of_and_ends_with_a_killed_serve(
    tmp_path: Path,
) -> None:
    port = free_ports().http_port
    arguments = (f"--openai-port={port}", "--max-restarts=0")
    with serve(tmp_path, "- name: plain\n", *arguments) as served:
        served.wait_for("Ctrl-C stops")
        health = f"http://127.0.0.1:{port}/health"
        ready = f"http://127.0.0.1:{served.listen.health_port}/ready"
        [child] = children(served)
        os.kill(child, signal.SIGSTOP)
        served.wait_for("the ports' process was stopped and is started again (1 death")
        served.wait_for("the ports' process is back")
        assert get(health).status == 200
        assert child not in children(served)

        [child] = children(served)
        os.kill(child, signal.SIGKILL)
        assert eventually(lambda: not Path(f"/proc/{child}").exists())
        served.wait_for(
            "the ports' process died (exit code -9) and is started again in 1 s (2 deaths"
        )
        while "the ports' process did not start (see above)" not in served.err:
            for child in children(served):
                os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
        assert "the ports' process did not start" in get(ready).body["reason"]
        assert get(ready).status == 503
        assert served.generate("plain", "x").status == 200
        assert get(health).status == 200, "who comes meanwhile waits"
        assert eventually(lambda: get(ready).status == 200)

        [child] = children(served)
        served.process.kill()
        assert eventually(lambda: not Path(f"/proc/{child}").exists())
        assert served.leaves_nothing()
