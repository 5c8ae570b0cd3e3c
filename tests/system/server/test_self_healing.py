"""Heals a real server under ``hf-triton serve`` when its processes die."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterable
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from hf_triton.serving.apply.target import running_target
from hf_triton.tritonserver.state_file import running_servers
from tests.support.callers import asking
from tests.support.served import Served, serve
from tests.support.triton import Answer, eventually, get, post

HEALED_S = 120.0


def kill_stub(served: Served, model: str) -> int:
    pid = served.stub_pid(model)
    os.kill(pid, signal.SIGKILL)
    return pid


def hang_a_load(served: Served, repository: Path, model: str) -> None:
    """Kills the process by which Triton replaces that of a version that goes on serving, in its
    first moments; tried again where it was ready sooner.
    """
    config, api = repository / model / "config.pbtxt", running_target(repository, None).api
    text, told = config.read_text(), f"it waits for ever for a process of '{model}' that has died"

    def load() -> None:
        with contextlib.suppress(OSError):  # it is never answered
            api.load(model)

    for attempt in range(20):
        time.sleep(4)  # processes that have just begun may be the load's
        change = f'parameters {{ key: "x" value {{ string_value: "{attempt}" }} }}'
        config.write_text(f"{text}\n{change}\n")
        loading = threading.Thread(target=load, daemon=True)
        with served.killed_at_birth():
            loading.start()
        has_ended = partial(lambda load: told in served.err or not load.is_alive(), loading)
        assert eventually(has_ended, HEALED_S), served.err
        if told in served.err:
            return
    raise AssertionError(served.err)


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


def over_grpc(client: InferenceServerClient, model: str) -> int:
    """200 for the text that was sent."""
    tensor = InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b"x"], dtype=object))
    found = client.infer(model, [tensor]).as_numpy("text_output")
    return 200 if bytes(found.reshape(-1)[0]) == b"x" else 0


@pytest.mark.threat("hanging-processes")
def test_a_model_whose_process_dies_is_loaded_again_and_others_are_untouched(
    tmp_path: Path,
) -> None:
    models = """\
    - name: single
    - {name: double, instance_group: [{count: 2, kind: KIND_CPU}]}
    - {name: streams, streaming: true}
    - {name: slow, options: {answer_s: 1}}
    - name: other
    - {name: endless, options: {answer_s: 600}}
    """
    with serve(tmp_path, models) as served:
        served.wait_for("Ctrl-C stops")
        assert eventually(lambda: is_ready(served), HEALED_S)
        assert eventually(lambda: metric(served, 'hf_triton_model_up{model="single"}') == 1)
        grpc = InferenceServerClient(f"127.0.0.1:{served.listen.grpc_port}")
        names = ("other", "single", "double", "streams", "slow")
        asks = [*(partial(status, served, name) for name in names)]
        asks += [partial(over_grpc, grpc, name) for name in names]
        with asking(*asks) as statuses:
            killed = {kill_stub(served, name) for name in ("single", "double", "streams_stream")}
            killed |= {kill_stub(served, name) for name in ("streams", "slow")}
            restarted = {"single": 1, "double": 1, "streams": 2, "slow": 1}
            healed = eventually(lambda: restarts(served, restarted) == restarted, HEALED_S)
            assert healed, served.err
            assert eventually(lambda: is_ready(served), HEALED_S), served.err
            for model in restarted:
                assert eventually(partial(answers, served, model), HEALED_S), (model, served.err)
        assert [set(found) for found in statuses] == [{200}] * len(asks), "an answer was lost"
        assert not killed & set(served.server_pids())
        assert metric(served, 'hf_triton_model_deaths_total{model="single"}') == 1
        assert metric(served, 'hf_triton_model_deaths_total{model="other"}') == 0
        served.wait_for("model 'single': its Python process died")
        served.wait_for("single is ready again after")

        os.kill(served.stub_pid("single"), signal.SIGSTOP)
        assert eventually(lambda: "process was stopped" in str(ready(served).body), 15)
        assert answers(served, "other")
        assert eventually(lambda: is_ready(served), HEALED_S), served.err
        assert answers(served, "single")

        os.kill(served.tritonserver_pid(), signal.SIGSTOP)
        assert eventually(lambda: not is_ready(served), 15)
        served.wait_for("tritonserver was stopped and is killed")
        assert eventually(lambda: is_ready(served), HEALED_S), served.err

        # One that dies in its first moments: Triton 24.10 would wait for it for ever, and call the
        # version before ready.
        with asking(partial(status, served, "other")) as (statuses_of_other,):
            hang_a_load(served, tmp_path / "repository", "other")
            assert eventually(lambda: is_ready(served), HEALED_S), served.err
        assert set(statuses_of_other) == {200}

        client = HTTPConnection("127.0.0.1", served.listen.http_port)
        client.request("POST", "/v2/models/endless/generate", json.dumps({"text_input": "x"}))
        # It is in flight once the server has counted it.
        assert eventually(lambda: served.num_requests("endless") == 1)
        kill_stub(served, "endless")
        client.close()  # else it would be computed again
        served.wait_for("model 'endless': its Python process died")
        assert eventually(lambda: is_ready(served), HEALED_S), served.err
        served.signal(signal.SIGTERM)
        assert served.exit_code() == 0
        assert served.leaves_nothing()


@pytest.mark.threat("repeated-deaths")
def test_a_server_that_dies_is_started_again_with_the_same_models_and_key(tmp_path: Path) -> None:
    models = "- {name: late, options: {fail: no weights}}\n- {name: doomed}\n- {name: plain}\n"
    with serve(tmp_path, models, "--max-restarts=1", "--open-admin-apis") as served:
        served.wait_for("Ctrl-C stops")
        url = f"http://127.0.0.1:{served.listen.http_port}/v2"
        for path in ("systemsharedmemory/status", "logging"):
            assert get(f"{url}/{path}").status == 200
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
        refused = served.generate("late", "x")
        assert refused.status == 503
        assert refused.body["error"] == (
            "model 'late' can't be loaded: RuntimeError: no weights; correct that, and "
            "`hf-triton apply` loads it again"
        )
        with pytest.raises(InferenceServerException, match=r"UNAVAILABLE.* no weights; correct"):
            over_grpc(InferenceServerClient(f"127.0.0.1:{served.listen.grpc_port}"), "late")

        options = tmp_path / "repository/late/1/model.json"
        options.write_text(options.read_text().replace('"no weights"', "null"))
        assert post(f"{url}/repository/models/late/load", {}).status == 200
        assert eventually(lambda: is_ready(served), HEALED_S), "it was mended"
        os.kill(served.tritonserver_pid(), signal.SIGKILL)
        assert eventually(lambda: "2 deaths" in str(ready(served).body))
        assert eventually(lambda: is_ready(served), HEALED_S), served.err

        break_model(tmp_path, "doomed")
        kill_stub(served, "doomed")
        served.wait_for("failed to load: RuntimeError: no weights; it is loaded again")
        served.wait_for("given up after 2 failed loads in a row")
        assert eventually(lambda: "given up" in str(ready(served).body), HEALED_S)
        assert metric(served, 'hf_triton_model_given_up{model="doomed"}') == 1
        refused = served.generate("doomed", "x")
        assert refused.status == 503
        assert "no weights; given up after 2 failed loads in a row; correct" in str(refused.body)
        assert answers(served, "late")
        for model in ("late", "plain"):
            break_model(tmp_path, model)
            kill_stub(served, model)
        assert served.exit_code() == 1
        assert served.err.endswith(
            "no model is left to serve; given up: doomed, late, plain (see above)\n"
        )
        assert running_servers(tmp_path / "repository") == []
        assert not list((tmp_path / "repository").glob(".hf-triton-server-*"))
        assert served.leaves_nothing()


def break_model(folder: Path, model: str) -> None:
    """From now on it fails to load."""
    options = folder / "repository" / model / "1/model.json"
    options.write_text(options.read_text().replace('"fail": null', '"fail": "no weights"'))
