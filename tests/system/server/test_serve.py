"""``hf-triton serve`` from outside: what it prints, serves, survives, and leaves behind."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from http.client import HTTPException
from pathlib import Path

import pytest

from hf_triton.tritonserver.state_file import running_servers
from perf.sweep.metrics import server_pids as measured_pids
from tests.support.served import serve
from tests.support.triton import Answer, eventually, free_ports, get


def run_curl(line: str) -> str:
    command = [*shlex.split(line), "--silent", "--fail", "--max-time", "120"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.threat("no-home")
def test_good_models_serve_beside_bad_and_late_ones_until_a_graceful_stop(tmp_path: Path) -> None:
    go_on, temporary = tmp_path / "go-on", tmp_path / "tmp"
    models = f"""\
    - name: plain
    - {{name: batched, max_batch_size: 4}}
    - {{name: gated, options: {{fail: "the model nobody/echo is gated: set HF_TOKEN"}}}}
    - {{name: killed, options: {{die: true}}}}
    - {{name: busy, options: {{answer_s: 2}}}}
    - {{name: demo, streaming: true, max_batch_size: 4, options: {{load_s: 1}}}}
    - {{name: broken, streaming: true, options: {{fail: no weights}}}}
    - {{name: late, options: {{load_until: {go_on}}}}}
    """
    folder = tmp_path / "a b $HOME; & 'c' né"  # letters that Triton's bash or Python can't take
    folder.mkdir()
    temporary.mkdir()
    nowhere = {"HOME": os.devnull, "XDG_CACHE_HOME": "", "TMPDIR": str(temporary)}
    with serve(folder, models, environment=nowhere) as served:
        served.wait_for("late prints")
        loading = served.generate("late", "x")
        assert loading == Answer(503, {"error": "model 'late' is being loaded; try again"})
        os.kill(served.stub_pid("late"), signal.SIGKILL)
        served.wait_for("model 'late': failed to load: its Python process died while loading (")
        served.wait_for("; it is loaded again")
        served.wait_for(": late\n")  # still loading
        assert "late is ready" not in served.err
        go_on.touch()
        served.wait_for("serving 5 of 8 models")
        served.wait_for("Ctrl-C stops")

        lines = [line for line in served.out.splitlines() if line.startswith("curl ")]
        assert len(lines) == 11  # /infer and /generate of five models, one of which streams
        for line in lines:
            if "/busy/" not in line:
                assert "I am going" in run_curl(line)
        assert '"shape": [1, 1]' in next(line for line in lines if "batched/infer" in line)
        (stream,) = [line for line in lines if "/demo_stream/generate_stream" in line]
        assert stream.startswith("curl -N http://")
        assert run_curl(stream).startswith("data: {")
        assert served.generate("late", "x").status == 200

        for model, reason in (
            ("gated", "RuntimeError: the model nobody/echo is gated: set HF_TOKEN"),
            ("broken", "RuntimeError: no weights"),
        ):
            told = [line for line in served.err.splitlines() if reason in line]
            assert len(told) == 1
            assert told[0].startswith(f"hf-triton: model '{model}' failed to load: {reason}")
        assert "model 'killed' failed to load: its Python process died" in served.err
        served.wait_for("plain prints")  # models' own log passes, and comes by another way
        served.wait_for("loading demo before demo_stream")
        order = re.findall(r'"(loading demo[^"]*)"', served.err)
        assert order == ["loading demo_stream", "loading demo before demo_stream"]
        assert "loading broken before" not in served.err, "no front without its engine"
        said = [line for line in served.err.splitlines() if line.startswith("hf-triton: ")]
        assert not [line for line in said if "_stream" in line and "generated in" not in line]
        for noise in ("DCGM", "NVML", "+---", "server.cc", "At:"):
            assert noise not in served.err

        answers: list[Answer] = []
        request = threading.Thread(target=lambda: answers.append(served.generate("busy", "last")))
        before = served.num_requests("busy")
        request.start()
        assert eventually(lambda: served.num_requests("busy") == before + 1)
        served.signal(signal.SIGTERM)
        request.join()
        assert answers[0].body["text_output"] == "last", "a request in flight is answered"
        assert served.exit_code() == 0
        assert served.err.endswith("hf-triton: stopped\n")
        assert served.leaves_nothing()
    kept = f"hf-triton-{os.getuid()}"  # one for each user, which starts make use of
    assert {path.name for path in temporary.iterdir()} <= {kept}


def test_not_ready_comes_before_the_stop_and_a_second_signal_forces_it(tmp_path: Path) -> None:
    models = "- {name: busy, options: {answer_s: 600}}\n- name: plain\n"
    with serve(tmp_path, models, "--drain-s=600") as served:
        served.wait_for("Ctrl-C stops")
        health = f"http://127.0.0.1:{served.listen.health_port}/ready"
        assert eventually(lambda: get(health).status == 200)
        threading.Thread(target=swallow, args=(lambda: served.generate("busy", "x"),)).start()
        assert eventually(lambda: served.num_requests("busy") == 1)
        served.signal(signal.SIGINT)
        served.wait_for("Ctrl-C again forces it")
        assert eventually(lambda: get(health).status == 503)
        assert get(health).body["phase"] == "stopping"
        assert served.generate("plain", "x").status == 200, "requests on their way are answered"
        os.kill(served.stub_pid("plain"), signal.SIGKILL)
        assert eventually(lambda: served.generate("plain", "x").status == 200), "it heals still"
        served.signal(signal.SIGINT)
        assert served.exit_code() == 130
        assert served.leaves_nothing()


def test_no_server_is_started_again_that_dies_while_it_drains(tmp_path: Path) -> None:
    with serve(tmp_path, "- name: plain\n", "--drain-s=600") as served:
        served.wait_for("Ctrl-C stops")
        served.signal(signal.SIGINT)
        served.wait_for("Ctrl-C again forces it")
        os.kill(served.tritonserver_pid(), signal.SIGKILL)
        assert served.exit_code() == 130
        assert "tritonserver died (killed by SIGKILL)" in served.err
        assert "started again" not in served.err
        assert served.leaves_nothing()


def test_a_stop_while_everything_still_loads_is_quick(tmp_path: Path) -> None:
    with serve(tmp_path, "- {name: slow, options: {load_s: 600}}\n") as served:
        served.wait_for("loading slow")
        served.signal(signal.SIGINT)
        assert served.exit_code() == 130
        assert served.leaves_nothing()


def test_no_process_outlives_serve_when_it_is_killed(tmp_path: Path) -> None:
    models = """\
    - name: ready
    - {name: idle, options: {load_s: 600}}
    - {name: holding, options: {load_s: 600, hold_interpreter: true}}
    """
    with serve(tmp_path, models) as served:
        for text in ("ready is ready", "idle prints", "holding prints"):
            served.wait_for(text)
        assert len(served.server_pids()) == 5  # guard, tritonserver, three stubs
        assert measured_pids(served.listen.http_port) == [served.process.pid]  # with its children
        (state,) = running_servers(tmp_path / "repository")
        served.signal(signal.SIGKILL)
        assert served.leaves_nothing()
        assert eventually(lambda: not Path(state.sockets).exists())


def test_a_server_that_dies_before_it_has_ever_served_ends_serve_with_its_last_lines(
    tmp_path: Path,
) -> None:
    models = "- {name: plain, options: {load_s: 600}}\n"
    with serve(tmp_path, models, "--max-restarts=0") as served:
        served.wait_for("loading plain")
        os.kill(served.tritonserver_pid(), signal.SIGKILL)
        assert served.exit_code() == 1
        assert "hf-triton: tritonserver died (killed by SIGKILL); its last lines:" in served.err
        assert "loading plain" in served.err.split("last lines:")[1]
        assert "given up: tritonserver died 1 time in a row before it had" in served.err
        assert served.leaves_nothing()


def test_no_model_that_loads_is_a_failure_and_so_is_a_file_edited_by_hand(tmp_path: Path) -> None:
    listen = free_ports()
    with serve(
        tmp_path, "- {name: broken, options: {fail: no weights}}\n", listen=listen
    ) as served:
        assert served.exit_code() == 1
        assert "model 'broken' failed to load: RuntimeError: no weights\n" in served.err
        assert served.err.endswith("hf-triton: no model is ready, so there is nothing to serve\n")
        assert not served.out
        assert served.leaves_nothing()
    edited = tmp_path / "repository" / "broken" / "config.pbtxt"
    edited.write_text("# mine\n")
    with serve(tmp_path, "- {name: broken, options: {fail: x}}\n", listen=listen) as served:
        assert served.exit_code() == 1
    assert "conflict: repository/broken/config.pbtxt" in served.err
    assert "tritonserver" not in served.err
    assert edited.read_text() == "# mine\n"


def test_a_port_in_use_is_named_with_its_flag_before_anything_is_written(tmp_path: Path) -> None:
    listen = free_ports()
    with (
        socket.create_server(("127.0.0.1", listen.grpc_port)),
        serve(tmp_path, "- name: plain\n", listen=listen) as served,
    ):
        assert served.exit_code() == 1
    expected = f"port {listen.grpc_port} is in use; choose another with --grpc-port"
    assert served.err == f"hf-triton: {expected}\n"
    assert not (tmp_path / "repository").exists()


def test_a_tritonserver_on_path_comes_first_and_its_failure_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "tritonserver").write_text('#!/bin/sh\necho "got $*"\necho cannot bind\nexit 3\n')
    (folder / "tritonserver").chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    arguments = ("--", "--log-verbose=1")
    with serve(tmp_path, "- name: a\n", *arguments, environment={"PATH": path}) as served:
        assert served.exit_code() == 1
    head, tail = served.err.split("tritonserver did not start (exit code 3); its last lines:")
    assert "--log-verbose=1\n" in head
    assert tail.endswith("cannot bind\n")


def test_as_a_module_it_is_the_wheels_own_tritonserver() -> None:
    pytest.importorskip("pytriton", reason="needs the embedded server")
    command = [sys.executable, "-m", "hf_triton.tritonserver.binary", "--model-repository=/nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert "failed to stat file /nowhere" in done.stdout + done.stderr
    assert done.returncode == 1


def swallow(call: object) -> None:
    assert callable(call)
    with contextlib.suppress(OSError, HTTPException):  # the server was killed
        call()
