"""apply on a real server: from what the fake one does it must not differ, and callers who ask
meanwhile in every way lose no answer.
"""

from __future__ import annotations

import operator
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from generator.errors import NoRoomError
from generator.python_modules import run_module
from generator.render.manifest import with_digest
from generator.repository import served_record
from generator.repository import writing as writer
from generator.repository.compare import ModelPlan, compare
from hf_triton.serving.apply.model_update import Outcome, UpdateSettings, update_model
from hf_triton.serving.apply.session import ApplyOptions, Session
from hf_triton.serving.apply.target import Target
from hf_triton.serving.supervision.model_loader import ModelLoader
from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.serving.supervision.stub_deaths import StubDeaths
from hf_triton.tritonserver.http_api import ServerApi
from hf_triton.tritonserver.model_state import ModelStates, State
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.stubs import StubEnds, find_stubs
from perf.sweep.metrics import parse_metrics
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
    record = served_record.read(made.repository)
    assert record is not None
    assert record.models == ("new", "s")


PROMPT, LENGTH = "Once", 12
MODELS_YAML = f"""\
models:
  - name: demo
    task: text-generation
    model: {DEMO_MODEL}
"""
CHANGED = MODELS_YAML + "    options: {max_queue_size: 99}\n"
_FREE = re.compile(r'(hf_triton_memory_bytes\{.*kind="free".*\}) .*')
STEPS = ("e_tokenizer", "e_model", "e_postprocessing")
TENSOR = '{{ name: "{name}" data_type: TYPE_STRING dims: [ 1 ] }}'
CODE = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        time.sleep({load_s})
        if "broken" in {says!r}:
            raise RuntimeError("no weights")

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()[0]
        said = np.array([text + b" " + {says!r}.encode()], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", said)])
"""


def step(name: str, says: str, load_s: float) -> dict[str, bytes]:
    """A step that adds what it says to the text."""
    config = (
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: 0\n'
        f"input [ {TENSOR.format(name='x')} ]\noutput [ {TENSOR.format(name='y')} ]\n"
        "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    )
    code = CODE.format(says=says, load_s=load_s)
    return with_digest({"config.pbtxt": config.encode(), "1/model.py": code.encode()})


def ensemble() -> dict[str, bytes]:
    names = ("x", "_a", "_b", "y")
    steps = ",\n".join(
        f'{{ model_name: "{name}"\n      model_version: -1\n'
        f'input_map {{ key: "x" value: "{names[i]}" }}\n'
        f'output_map {{ key: "y" value: "{names[i + 1]}" }} }}'
        for i, name in enumerate(STEPS)
    )
    config = (
        'name: "e"\nplatform: "ensemble"\nmax_batch_size: 0\n'
        f"input [ {TENSOR.format(name='x')} ]\noutput [ {TENSOR.format(name='y')} ]\n"
        f"ensemble_scheduling {{ step [\n{steps}\n] }}\n"
    )
    return with_digest({"config.pbtxt": config.encode(), "1/model.json": b"{}\n"})


def plans(folder: Path, *says: str) -> list[ModelPlan]:
    """The ensemble and its steps; the second, as a model does, takes its time to load."""
    found = {"e": ensemble()}
    for name, said, load_s in zip(STEPS, says, (0.0, 0.5, 0.1), strict=True):
        found[name] = step(name, said, load_s)
    return [compare(folder / name, files) for name, files in found.items()]


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """A streaming model, and an ensemble of three steps."""

    def add_ensemble(repository: Path) -> None:
        for plan in plans(repository, "t1", "m1", "p1"):
            writer.apply(plan)

    folder = tmp_path_factory.mktemp("under_load")
    with serving(MODELS_YAML, folder, prepare=add_ensemble) as running:
        assert running.server.api.load("e") is None
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
    samples = parse_metrics(triton.server.api.metrics())
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
    with monkeypatch.context() as full:  # the models' own numbers, but no byte is free
        full.setattr(ServerApi, "metrics", lambda api: _FREE.sub(r"\1 0", asked(api)))
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


def change(server: TritonServer, *says: str) -> tuple[Outcome, set[str]]:
    """Changes the ensemble's steps while requests go on; what became of them."""

    with asking(*[partial(ask, server)] * 2, pause_s=0.005) as (one, other):
        assert eventually(lambda: len(one + other) >= 2)
        found = plans(server.repository, *says)
        settings = UpdateSettings(60.0, force=False)
        outcome = update_model(found, (), Target(server.api), settings)
        num_answers = len(one + other)
        assert eventually(lambda: len(one + other) >= num_answers + 3)  # one was asked for after it
    return outcome, set(one + other)


def ask(server: TritonServer) -> str:
    url = f"http://{server.listen.address(server.listen.http_port)}/v2/models/e/generate"
    answer = post(url, {"x": "?"})
    return str(answer.body["y"] if answer.status == 200 else answer)


def test_no_request_passes_from_an_old_step_of_an_ensemble_to_a_new_one(triton: Triton) -> None:
    """Without the ports of ``serve``, where requests wait meanwhile."""
    server = triton.server
    assert server.api.load("e") is None  # an apply has unloaded it, of which it knew nothing
    before, after = ask(server), "? t5 m5 p5"
    for says in (("t5", "m5", "p5"), ("t6", "broken", "p6")):
        outcome, answers = change(server, *says)
        refused = {answer for answer in answers if answer.startswith("Answer(status=")}
        assert refused, "nobody met the gap"
        assert answers - {before, after} == refused, answers
        told = re.search(r"no weights; version \d+ is loaded again", outcome.failure)
        assert bool(told) == ("broken" in says), outcome.failure
        assert ask(server) == after
    assert all(plan.is_current for plan in plans(server.repository, "t5", "m5", "p5"))


def test_requests_wait_while_an_ensemble_changes_behind_the_ports(tmp_path: Path) -> None:
    entry = f"{{name: v, task: feature-extraction, model: {ROOT}/demo/embedding, layout: ensemble"

    def say(batch_size: int) -> None:
        models = f"models: [{entry}, max_batch_size: {batch_size}}}]\n"
        (tmp_path / "models.yaml").write_text(models, encoding="utf-8")

    say(8)
    with started(tmp_path, ("generator",), (), free_ports(), {}) as served:
        served.wait_for("Ctrl-C stops")
        url = f"http://127.0.0.1:{served.listen.http_port}/v2/models/v/infer"
        text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a day"]}
        with asking(*[partial(post, url, {"inputs": [text]})] * 3, pause_s=0.01) as answers:
            for batch_size in (16, 32):
                say(batch_size)
                command = run_module("generator", "apply", "--repository=repository")
                done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
                assert "unloaded; requests wait until it is loaded again" in done.stdout
                assert done.returncode == 0, done
        found = [answer for each in answers for answer in each]
        assert {getattr(answer, "status", answer) for answer in found} == {200}, found


def test_an_ensemble_is_whole_again_after_some_of_its_steps_died(triton: Triton) -> None:
    server, said = triton.server, list[str]()
    served, states = ServedModels(server.repository, ["e"]), ModelStates()
    deaths = StubDeaths(server.api, lambda: find_stubs(server.pid), StubEnds())
    loader = ModelLoader(server.api, deaths, served, states, said.append)
    answer = ask(server)
    for killed in (STEPS[:1], STEPS[1:]):
        loader.look(sweep=True)
        for stub in find_stubs(server.pid):
            if stub.model in killed:
                os.kill(stub.pid, signal.SIGKILL)

        def heals(times: int = len(said) + 2 * len(killed)) -> bool:
            loader.look(sweep=True)
            return len(said) >= times and not states.any(State.HEALING)

        assert eventually(heals, 120), said
        assert ask(server) == answer
    assert {line.partition(":")[0] for line in said if "died" in line} == {"model 'e'"}


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
