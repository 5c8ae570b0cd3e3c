"""What ``hf-triton serve`` does when processes of a real server die."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterable
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

from hf_triton.serving.supervision.healing import Healer
from hf_triton.serving.supervision.health import Health
from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.serving.supervision.stub_deaths import StubDeaths
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.restart_policy import RestartPolicy
from hf_triton.tritonserver.state_file import running_servers
from hf_triton.tritonserver.stubs import find_stubs
from tests.support.callers import asking
from tests.support.served import Served, serve
from tests.support.triton import Answer, eventually, free_ports, get, post

pytestmark = [pytest.mark.server, pytest.mark.slow]

HEALED_S = 120.0


def kill_stub(served: Served, model: str) -> int:
    pid = served.stub_pid(model)
    os.kill(pid, signal.SIGKILL)
    return pid


def status(served: Served, model: str) -> int:
    return asked(lambda: served.generate(model, "x")).status


def answers(served: Served, model: str) -> bool:
    return status(served, model) == 200


def asked(ask: Any) -> Answer:
    try:
        answer: Answer = ask()
    except (OSError, HTTPException) as error:  # a server that starts, or one that was killed
        return Answer(0, str(error))
    return answer


def ready(served: Served) -> Answer:
    return asked(lambda: get(f"http://127.0.0.1:{served.listen.health_port}/ready"))


def is_ready(served: Served) -> bool:
    return ready(served).status == 200


def metric(served: Served, sample: str) -> float:
    text = get(f"http://127.0.0.1:{served.listen.health_port}/metrics").body
    return float(next(line for line in text.splitlines() if line.startswith(sample)).split()[-1])


def restarts(served: Served, models: Iterable[str]) -> dict[str, float]:
    sample = 'hf_triton_model_restarts_total{{model="{}"}}'
    return {model: metric(served, sample.format(model)) for model in models}


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
        assert eventually(lambda: metric(served, 'hf_triton_model_up{model="single"}') == 1)
        names = ("other", "single", "double", "streams")
        with asking(*(partial(status, served, name) for name in names)) as statuses:
            killed = {kill_stub(served, name) for name in ("single", "double", "streams_stream")}
            killed.add(kill_stub(served, "streams"))
            restarted = {"single": 1, "double": 1, "streams": 2}
            healed = eventually(lambda: restarts(served, restarted) == restarted, HEALED_S)
            assert healed, served.err
            assert eventually(lambda: is_ready(served), HEALED_S), served.err
            for model in restarted:
                assert eventually(partial(answers, served, model), HEALED_S), (model, served.err)
        assert set().union(*statuses) == {200}, "an answer was lost"
        assert not killed & set(served.server_pids())
        assert metric(served, 'hf_triton_model_deaths_total{model="single"}') == 1
        assert metric(served, 'hf_triton_model_deaths_total{model="other"}') == 0
        served.wait_for("model 'single': its Python process died")
        served.wait_for("model 'single' is back after")

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
        with asking(partial(status, served, "plain")) as (statuses,):
            os.kill(served.tritonserver_pid(), signal.SIGKILL)
            served.wait_for("plain is ready again")
        assert set(statuses) == {200}, "an answer was lost"
        assert running_servers(tmp_path / "repository") == [before]
        assert metric(served, "hf_triton_server_restarts_total") == 1
        assert eventually(lambda: metric(served, "hf_triton_server_up") == 1)
        assert served.out.count("plain/infer") == 1, "curl lines are printed once"
        assert eventually(lambda: "no weights" in str(ready(served).body))

        served.signal(signal.SIGTERM)
        assert served.exit_code() == 0
        assert running_servers(tmp_path / "repository") == []
        assert not list((tmp_path / "repository").glob(".hf-triton-server-*"))
        assert served.leaves_nothing()


@pytest.mark.threat("hanging-processes")
def test_a_process_that_was_stopped_is_told_of_and_replaced_within_seconds(tmp_path: Path) -> None:
    with serve(tmp_path, "- name: plain\n- name: other\n") as served:
        served.wait_for("Ctrl-C stops")
        assert eventually(lambda: is_ready(served), HEALED_S)
        os.kill(served.stub_pid("plain"), signal.SIGSTOP)
        assert eventually(lambda: "process was stopped" in str(ready(served).body), 15)
        assert answers(served, "other")
        assert eventually(lambda: is_ready(served), HEALED_S), served.err
        assert answers(served, "plain")

        os.kill(served.tritonserver_pid(), signal.SIGSTOP)
        assert eventually(lambda: not is_ready(served), 15)
        served.wait_for("tritonserver was stopped and is killed")
        assert eventually(lambda: is_ready(served), HEALED_S), served.err
        assert answers(served, "plain")


@pytest.mark.threat("hanging-processes")
def test_a_model_whose_process_dies_in_its_first_moments_is_loaded_again(tmp_path: Path) -> None:
    """Triton 24.10 would wait for it for ever."""
    with serve(tmp_path, "- name: plain\n- name: other\n") as served:
        served.wait_for("Ctrl-C stops")
        first = kill_stub(served, "plain")
        while not (begun := set(served.stub_pids("plain")) - {first}):
            time.sleep(0.005)
        for pid in begun:
            os.kill(pid, signal.SIGKILL)
        assert served.generate("plain", "x").status == 200


def break_model(folder: Path, model: str) -> None:
    """From now on it fails to load."""
    options = folder / "repository" / model / "1/model.json"
    options.write_text(options.read_text().replace('"fail": null', '"fail": "no weights"'))


def test_a_model_that_no_longer_loads_is_given_up_and_the_exit_code_says_so(tmp_path: Path) -> None:
    with serve(tmp_path, "- name: doomed\n- name: other\n", "--max-restarts=1") as served:
        served.wait_for("Ctrl-C stops")
        break_model(tmp_path, "doomed")
        kill_stub(served, "doomed")
        served.wait_for("failed to load: RuntimeError: no weights; it is loaded again")
        served.wait_for("given up after 2 failed loads in a row")
        assert eventually(lambda: "given up" in str(ready(served).body), HEALED_S)
        assert metric(served, 'hf_triton_model_given_up{model="doomed"}') == 1
        assert answers(served, "other")
        served.signal(signal.SIGTERM)
        assert served.exit_code() == 1
        assert served.err.endswith("exit code 1, for models were given up: doomed\n")


def test_nothing_left_to_serve_ends_serve(tmp_path: Path) -> None:
    with serve(tmp_path, "- name: doomed\n", "--max-restarts=0") as served:
        served.wait_for("Ctrl-C stops")
        break_model(tmp_path, "doomed")
        kill_stub(served, "doomed")
        assert served.exit_code() == 1
        assert served.err.endswith("no model is left to serve; given up: doomed (see above)\n")
        assert served.leaves_nothing()


def test_a_model_that_was_mended_is_left_to_serve(tmp_path: Path) -> None:
    models = "- {name: late, options: {fail: no weights}}\n- name: doomed\n"
    with serve(tmp_path, models, "--max-restarts=0", "--open-admin-apis") as served:
        served.wait_for("Ctrl-C stops")
        options = tmp_path / "repository/late/1/model.json"
        options.write_text(options.read_text().replace('"no weights"', "null"))
        url = f"http://127.0.0.1:{served.listen.http_port}/v2/repository/models/late/load"
        assert post(url, {}).status == 200
        assert eventually(lambda: is_ready(served), HEALED_S)
        break_model(tmp_path, "doomed")
        kill_stub(served, "doomed")
        served.wait_for("given up after 1 failed load in a row")
        assert eventually(lambda: "given up" in str(ready(served).body), HEALED_S)
        assert answers(served, "late")
        served.signal(signal.SIGTERM)
        assert served.exit_code() == 1


def test_a_model_that_somebody_mended_is_tried_again_after_a_restart(tmp_path: Path) -> None:
    models = "- {name: late, options: {fail: no weights}}\n- name: other\n"
    with serve(tmp_path, models, "--open-admin-apis", "--max-restarts=20") as served:
        served.wait_for("Ctrl-C stops")
        options = tmp_path / "repository/late/1/model.json"
        broken = options.read_text()
        options.write_text(broken.replace('"no weights"', "null"))
        url = f"http://127.0.0.1:{served.listen.http_port}/v2/repository/models/late/load"
        assert post(url, {}).status == 200
        assert eventually(lambda: is_ready(served), HEALED_S)
        options.write_text(broken)
        os.kill(served.tritonserver_pid(), signal.SIGKILL)
        served.wait_for("model 'late': failed to load: RuntimeError: no weights; it is loaded")
        options.write_text(broken.replace('"no weights"', "null"))
        assert eventually(lambda: is_ready(served), HEALED_S), served.err


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


def test_a_stop_does_not_wait_for_requests_of_a_process_that_died(tmp_path: Path) -> None:
    models = "- {name: slow, options: {answer_s: 600}}\n"
    with serve(tmp_path, models) as served:
        served.wait_for("Ctrl-C stops")
        client = HTTPConnection("127.0.0.1", served.listen.http_port)
        client.request("POST", "/v2/models/slow/generate", json.dumps({"text_input": "x"}))
        # It is in flight once the server has counted it.
        assert eventually(lambda: served.num_requests("slow") == 1)
        kill_stub(served, "slow")
        client.close()  # else it would be computed again
        served.wait_for("model 'slow' is back")
        served.signal(signal.SIGTERM)
        assert served.exit_code() == 0
        assert "requests of the processes that died were never answered" in served.err


STEP = """\
backend: "python"
input [{ name: "text_input", data_type: TYPE_STRING, dims: [1] }]
output [{ name: "text_output", data_type: TYPE_STRING, dims: [1] }]
"""
ENSEMBLE = """\
platform: "ensemble"
input [{ name: "text_input", data_type: TYPE_STRING, dims: [1] }]
output [{ name: "text_output", data_type: TYPE_STRING, dims: [1] }]
ensemble_scheduling { step [
  { model_name: "one" model_version: -1
    input_map { key: "text_input" value: "text_input" }
    output_map { key: "text_output" value: "between" } },
  { model_name: "two" model_version: -1
    input_map { key: "text_input" value: "between" }
    output_map { key: "text_output" value: "text_output" } }
] }
"""
ECHO = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(r, "text_input").as_numpy() for r in requests]
        outputs = [[pb_utils.Tensor("text_output", text)] for text in texts]
        return [pb_utils.InferenceResponse(output) for output in outputs]
"""


def test_an_ensemble_is_whole_again_after_one_or_both_of_its_steps_died(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").write_text(ECHO)
        (tmp_path / name / "config.pbtxt").write_text(f'name: "{name}"\n{STEP}')
    (tmp_path / "both" / "1").mkdir(parents=True)
    (tmp_path / "both" / "config.pbtxt").write_text(f'name: "both"\n{ENSEMBLE}')
    listen = free_ports()
    with TritonServer(tmp_path, listen) as server:
        server.wait_ready(["both"])
        said: list[str] = []
        served, health = ServedModels(tmp_path, ["both"]), Health()
        deaths = StubDeaths(server.api, lambda: find_stubs(server.pid))
        healer = Healer(server.api, deaths, served, health, RestartPolicy(), said.append)
        for killed in (["one"], ["two"], ["one", "two"]):
            healer.look(sweep=True)
            for stub in find_stubs(server.pid):
                if stub.model in killed:
                    os.kill(stub.pid, signal.SIGKILL)

            def heals(times: int = len(said) + 2 * len(killed)) -> bool:
                healer.look(sweep=True)
                return len(said) >= times and not healer.is_healing()

            assert eventually(heals, HEALED_S), said
            url = f"http://127.0.0.1:{listen.http_port}/v2/models/both/generate"
            assert post(url, {"text_input": "x"}).status == 200
        assert {line.partition(":")[0] for line in said if "died" in line} == {"model 'both'"}


def test_not_ready_comes_before_the_stop_for_as_long_as_asked(tmp_path: Path) -> None:
    with serve(tmp_path, "- name: plain\n", "--drain-s=600") as served:
        served.wait_for("Ctrl-C stops")
        assert eventually(lambda: is_ready(served), HEALED_S)
        served.signal(signal.SIGTERM)
        assert eventually(lambda: ready(served).status == 503)
        assert ready(served).body["phase"] == "stopping"
        assert answers(served, "plain"), "requests on their way are answered"
        served.signal(signal.SIGTERM)
        assert served.exit_code() == 130


def test_no_answer_is_lost_whatever_is_killed(tmp_path: Path) -> None:
    models = """\
    - name: plain
    - {name: streams, streaming: true}
    - {name: slow, options: {answer_s: 1}}
    """
    draw = random.Random(0)
    with serve(tmp_path, models) as served:
        served.wait_for("Ctrl-C stops")
        grpc = InferenceServerClient(f"127.0.0.1:{served.listen.grpc_port}")
        tensor = InferInput("text_input", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([b"x"], dtype=object))

        def over_grpc(model: str) -> bytes:
            found = grpc.infer(model, [tensor]).as_numpy("text_output")
            return bytes(found.reshape(-1)[0])

        def over_http(model: str) -> bytes:
            answer = served.generate(model, "x")
            assert answer.status == 200, answer
            return str(answer.body["text_output"]).encode()

        names = ("plain", "streams", "slow")
        asks = [partial(ask, name) for name in names for ask in (over_grpc, over_http)]
        expected = [ask() for ask in asks]
        kinds = draw.sample(["plain", "streams", "streams_stream", "slow"] * 2 + ["server"], 9)
        with asking(*asks) as found:
            for kind in kinds:
                pids = [served.tritonserver_pid()] if kind == "server" else served.stub_pids(kind)
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(draw.uniform(0.5, 5))
        for texts, text in zip(found, expected, strict=True):
            assert [one for one in texts if one != text] == []
