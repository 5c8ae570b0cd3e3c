"""What ``hf-triton serve`` does when processes of a real server die."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from generator.server_state import running_servers
from tests.support.served import Served, serve
from tests.support.triton import Answer, eventually, get, post

pytestmark = pytest.mark.server

HEALED_S = 60.0


def kill_stub(served: Served, model: str) -> int:
    pid = served.stub_pid(model)
    os.kill(pid, signal.SIGKILL)
    return pid


def answers(served: Served, model: str) -> bool:
    return asked(lambda: served.generate(model, "x")).status == 200


def asked(ask: Any) -> Answer:
    try:
        answer: Answer = ask()
    except OSError as error:  # a server that starts, or one that was killed
        return Answer(0, str(error))
    return answer


def ready(served: Served) -> Answer:
    return asked(lambda: get(f"http://127.0.0.1:{served.listen.health_port}/ready"))


def is_ready(served: Served) -> bool:
    return ready(served).status == 200


def metric(served: Served, sample: str) -> float:
    text = get(f"http://127.0.0.1:{served.listen.health_port}/metrics").body
    return float(next(line for line in text.splitlines() if line.startswith(sample)).split()[-1])


@contextmanager
def asked_all_the_time(served: Served, model: str) -> Iterator[list[int]]:
    """The statuses of requests to a model, one after the other while the block runs."""
    statuses: list[int] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            statuses.append(asked(lambda: served.generate(model, "x")).status)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield statuses
    finally:
        ended.set()
        thread.join()


def test_a_model_whose_process_dies_is_loaded_again_and_others_are_untouched(
    tmp_path: Path,
) -> None:
    models = """\
    - name: single
    - {name: double, instance_group: [{count: 2, kind: KIND_CPU}]}
    - {name: streams, streaming: true}
    - name: other
    """
    with serve(tmp_path, models) as served:
        served.wait_for("Ctrl-C stops")
        assert eventually(lambda: is_ready(served), HEALED_S)
        assert metric(served, 'hf_triton_model_up{model="single"}') == 1
        with asked_all_the_time(served, "other") as statuses:
            killed = {kill_stub(served, name) for name in ("single", "double", "streams_stream")}
            killed.add(kill_stub(served, "streams"))
            assert eventually(lambda: not is_ready(served))
            assert eventually(lambda: is_ready(served), HEALED_S), served.err
            for model in ("single", "double", "streams"):
                assert answers(served, model), served.err
        assert set(statuses) == {200}
        assert not killed & set(served.server_pids())
        assert metric(served, 'hf_triton_model_deaths_total{model="single"}') == 1
        assert metric(served, 'hf_triton_model_restarts_total{model="streams"}') == 2
        assert metric(served, 'hf_triton_model_deaths_total{model="other"}') == 0
        assert "model 'single': its Python process died (killed by SIGKILL" in served.err
        assert "model 'single' is back after" in served.err

        served.signal(signal.SIGTERM)
        assert served.exit_code() == 0
        assert served.leaves_nothing()


def test_a_server_that_dies_is_started_again_with_the_same_models_and_key(tmp_path: Path) -> None:
    with serve(
        tmp_path, "- name: plain\n- {name: broken, options: {fail: no weights}}\n"
    ) as served:
        served.wait_for("Ctrl-C stops")
        (before,) = running_servers(tmp_path / "repository")
        assert before.pid == served.process.pid
        assert before.health_port == served.listen.health_port
        os.kill(served.tritonserver_pid(), signal.SIGKILL)
        assert eventually(lambda: answers(served, "plain"), HEALED_S), served.err
        served.wait_for("plain is ready again")
        assert running_servers(tmp_path / "repository") == [before]
        assert metric(served, "hf_triton_server_restarts_total") == 1
        assert eventually(lambda: metric(served, "hf_triton_server_up") == 1)
        assert served.out.count("plain/infer") == 1, "curl lines are printed once"
        assert eventually(lambda: "no weights" in str(ready(served).body["not_ready"]["broken"]))

        served.signal(signal.SIGTERM)
        assert served.exit_code() == 0
        assert running_servers(tmp_path / "repository") == []
        assert not list((tmp_path / "repository").glob(".hf-triton-server-*"))
        assert served.leaves_nothing()


def test_a_model_that_dies_too_often_is_given_up_and_the_exit_code_says_so(tmp_path: Path) -> None:
    with serve(tmp_path, "- name: doomed\n- name: other\n", "--max-restarts=1") as served:
        served.wait_for("Ctrl-C stops")
        kill_stub(served, "doomed")
        served.wait_for("model 'doomed' is back")
        kill_stub(served, "doomed")
        served.wait_for("given up after 2 deaths within 10 minutes")
        assert eventually(lambda: "given up" in str(ready(served).body), HEALED_S)
        assert metric(served, 'hf_triton_model_given_up{model="doomed"}') == 1
        assert answers(served, "other")
        served.signal(signal.SIGTERM)
        assert served.exit_code() == 1
        assert served.err.endswith("exit code 1, for models were given up: doomed\n")


def test_nothing_left_to_serve_ends_serve(tmp_path: Path) -> None:
    with serve(tmp_path, "- name: doomed\n", "--max-restarts=0") as served:
        served.wait_for("Ctrl-C stops")
        kill_stub(served, "doomed")
        assert served.exit_code() == 1
        assert served.err.endswith("no model is left to serve; given up: doomed (see above)\n")
        assert served.leaves_nothing()


def test_a_stop_while_a_model_is_loaded_again_is_quick_and_graceful(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    go_on.touch()
    models = f"- {{name: slow, options: {{load_until: {go_on}}}}}\n- name: other\n"
    with serve(tmp_path, models) as served:
        served.wait_for("Ctrl-C stops")
        go_on.unlink()
        before = kill_stub(served, "slow")
        assert eventually(lambda: served.stub_pids("slow") not in ([], [before]), HEALED_S)
        served.signal(signal.SIGTERM)
        assert served.exit_code() == 0
        assert served.leaves_nothing()


def test_a_model_unloaded_by_hand_stays_so(tmp_path: Path) -> None:
    with serve(tmp_path, "- name: taken\n- name: other\n", "--open-admin-apis") as served:
        served.wait_for("Ctrl-C stops")
        assert eventually(lambda: is_ready(served), HEALED_S)
        url = f"http://127.0.0.1:{served.listen.http_port}/v2/repository/models/taken/unload"
        assert post(url, {}).status == 200
        assert eventually(lambda: "taken" in ready(served).body["not_ready"])
        kill_stub(served, "other")
        served.wait_for("model 'other' is back")
        assert "model 'taken':" not in served.err
        assert not served.stub_pids("taken")


def test_not_ready_comes_before_the_stop_for_as_long_as_asked(tmp_path: Path) -> None:
    with serve(tmp_path, "- name: plain\n", "--drain-s=60") as served:
        served.wait_for("Ctrl-C stops")
        assert eventually(lambda: is_ready(served), HEALED_S)
        served.signal(signal.SIGTERM)
        assert eventually(lambda: ready(served).status == 503)
        assert ready(served).body["phase"] == "stopping"
        assert answers(served, "plain"), "requests on their way are answered"
        served.signal(signal.SIGTERM)
        assert served.exit_code() == 130
