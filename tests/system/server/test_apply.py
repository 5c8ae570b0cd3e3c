"""apply on a real server: from what the fake one does it must not differ, and callers who ask
meanwhile in every way lose no answer.
"""

from __future__ import annotations

import operator
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

import psutil
import pytest

from generator.errors import NoRoomError
from generator.python_modules import run_module
from hf_triton.serving.apply.model_update import ApplyOptions
from hf_triton.serving.apply.session import Session
from hf_triton.serving.apply.target import Target
from hf_triton.tritonserver.http_api import Sample, ServerApi
from hf_triton.tritonserver.state_file import served_models
from tests.scenarios.endpoint import Model, joined
from tests.scenarios.reference import Reference
from tests.scenarios.triton_endpoints import GrpcEndpoint
from tests.support.apply_bench import Bench, bench
from tests.support.callers import asking
from tests.support.served import started
from tests.support.triton import (
    DEMO_MODEL,
    ROOT,
    Triton,
    eventually,
    free_ports,
    post,
    post_for_events,
    serving,
)

SLOWER = "options: {answer_s: 0.01}"


@pytest.fixture(params=["fake", "real"])
def made(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    with bench(request.param, tmp_path, monkeypatch) as found:
        yield found


def test_a_change_an_addition_and_a_removal(made: Bench) -> None:
    assert made.apply().out.endswith("is up to date: nothing to do\n")
    made.say(f"- {{name: s, streaming: true, {SLOWER}}}\n- {{name: new}}\n")
    ran = made.apply()
    assert (ran.code, made.is_current()) == (0, False)  # the folder of a is still there
    assert "1 changed, 1 added, 1 removed" in ran.out
    assert made.ready("a") == set()
    assert (made.ready("new"), made.ready("s"), made.ready("s_stream")) == ({1}, {1}, {2})
    assert served_models(made.repository) == ("new", "s")


PROMPT, LENGTH = "Once", 12
MODELS_YAML = f"""\
models:
  - name: demo
    task: text-generation
    model: {DEMO_MODEL}
"""
CHANGED = MODELS_YAML + "    options: {max_queue_size: 99}\n"


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """A streaming model."""
    with serving(MODELS_YAML, tmp_path_factory.mktemp("under_load")) as running:
        yield running


def version(triton: Triton) -> int:
    """The one of the engine that answers."""
    (found,) = (
        int(entry.version)
        for entry in triton.server.api.index()
        if (entry.model, entry.state) == ("demo_stream", "READY")
    )
    return found


def slots_by_version(triton: Triton) -> dict[str, float]:
    """As /metrics has them."""
    samples = triton.server.api.metrics()
    return {s.labels["version"]: s.value for s in samples if s.name == "hf_triton_kv_slots"}


def infer(triton: Triton) -> str:
    inputs: tuple[dict[str, object], ...] = (
        {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [PROMPT]},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1], "data": [LENGTH]},
    )
    answer = triton.infer("demo", *inputs, outputs=[{"name": "text_output"}])
    return str(answer.body["outputs"][0]["data"][0])


def generate(triton: Triton) -> str:
    answer = triton.generate("demo", text_input=PROMPT, max_tokens=LENGTH)
    return str(answer.body["text_output"])


def generate_stream(triton: Triton) -> str:
    body = {"text_input": PROMPT, "max_tokens": LENGTH, "stream": True}
    status, events = post_for_events(triton.url("demo_stream", "generate_stream"), body)
    assert status == 200
    return "".join(event["text_output"] for event in events)


def grpc(triton: Triton) -> str:
    model = Model(GrpcEndpoint(triton), "demo", batched=False)
    return model.ask("tensors", PROMPT, max_tokens=LENGTH).text()


def grpc_stream(triton: Triton) -> str:
    model = Model(GrpcEndpoint(triton), "demo", batched=False)
    return joined(model.engine.stream(PROMPT, max_tokens=LENGTH))


WAYS: list[Callable[[Triton], str]] = [infer, generate, generate_stream, grpc, grpc_stream]


def test_a_model_changes_and_changes_back_and_every_request_is_answered(
    triton: Triton,
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    repository: Path = triton.server.repository
    config = repository.parent / "models.yaml"
    target = Target(triton.server.api)
    config.write_text(CHANGED, encoding="utf-8")
    asked = ServerApi.metrics

    def without_room(api: ServerApi) -> list[Sample]:
        """The models' own numbers, but no byte is free."""
        kinds = ((one, one.labels.get("kind")) for one in asked(api))
        return [one._replace(value=0.0) if kind == "free" else one for one, kind in kinds]

    with monkeypatch.context() as full:
        full.setattr(ServerApi, "metrics", without_room)
        with pytest.raises(NoRoomError):
            Session(repository, target, ApplyOptions()).apply(config)
    assert version(triton) == 1
    lines = capsys.readouterr().out.splitlines()
    (told,) = [line for line in lines if "no room" in line]
    (size,) = map(float, re.findall(r"needs ([0-9.]+) GiB on cpu", told))
    assert 0.1 < size < 2, told  # Python, torch, and a small model

    with asking(*(partial(way, triton) for way in WAYS)) as answers:
        assert Session(repository, target, ApplyOptions()).apply(config) == 0
        assert version(triton) == 2
        slots = slots_by_version(triton)
        assert slots.pop("1") == 0
        assert slots["2"] > 0
        config.write_text(MODELS_YAML, encoding="utf-8")
        assert Session(repository, target, ApplyOptions()).apply(config) == 0
        assert version(triton) == 3
    assert [set(found) for found in answers] == [{reference.text(PROMPT, LENGTH)}] * len(WAYS)


def test_requests_wait_for_a_changed_ensemble_and_an_added_model_says_that_it_loads(
    tmp_path: Path,
) -> None:
    entry = f"{{name: v, task: feature-extraction, model: {ROOT}/demo/embedding, layout: ensemble"

    def say(batch_size: int, more: str = "") -> None:
        models = f"models: [{entry}, max_batch_size: {batch_size}}}{more}]\n"
        (tmp_path / "models.yaml").write_text(models, encoding="utf-8")

    def apply() -> str:
        command = run_module("hf_triton.cli", "apply", "--repository=repository")
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done
        return done.stdout

    say(8)
    with started(tmp_path, ("hf_triton.cli",), (), free_ports(), {}) as served:
        served.wait_for("Ctrl-C stops")
        url = f"http://127.0.0.1:{served.listen.http_port}/v2/models/v/infer"
        text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a day"]}
        with asking(*[partial(post, url, {"inputs": [text]})] * 3, pause_s=0.01) as answers:
            for batch_size in (16, 32):
                say(batch_size)
                assert "unloaded; requests wait until it is loaded again" in apply()
        found = [answer for each in answers for answer in each]
        assert {getattr(answer, "status", answer) for answer in found} == {200}, found

        say(32, f", {{name: demo, task: text-generation, model: {DEMO_MODEL}}}")
        with asking(partial(served.generate, "demo", PROMPT), pause_s=0.01) as (found,):
            apply()
        statuses = [status for status, _ in groupby(found, key=lambda answer: answer.status)]
        assert statuses == [404, 503, 200], found


def processes(triton: Triton) -> list[psutil.Process]:
    """The server's, its models' and its guard."""
    return [
        p for p in psutil.process_iter(["cmdline"]) if _process_group(p.pid) == triton.server.pid
    ]


def _process_group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def held(triton: Triton) -> tuple[int, int, int]:
    """The processes, shared memory and open files of the server."""
    found = processes(triton)
    server = next(
        p for p in found if any("--http-port=" in a for a in (p.info["cmdline"] or ())[:9])
    )
    regions = Path("/dev/shm").glob(f"{triton.server.shared_memory_prefix}*")
    return len(found), len(list(regions)), server.num_fds()


def test_loading_again_and_again_leaves_nothing_behind(
    triton: Triton, reference: Reference
) -> None:
    folders, after_each = ("demo_stream", "demo"), list[tuple[int, int, int]]()
    for number in range(3):
        for action in ("unload", "load"):
            # In either order: the front finds its engine whenever that comes.
            for folder in folders if number % 2 else folders[::-1]:
                assert triton.control(folder, action).status == 200
        assert [way(triton) for way in WAYS] == [reference.text(PROMPT, LENGTH)] * len(WAYS)
        after_each.append(held(triton))
    most = [number + margin for number, margin in zip(after_each[0], (0, 0, 8), strict=True)]
    # A model's process ends before its region.
    assert eventually(lambda: all(map(operator.le, held(triton), most))), (after_each, held(triton))
