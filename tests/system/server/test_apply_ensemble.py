"""Several steps of an ensemble change at once under load: every answer is all old or all new."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from generator.render.digest import with_digest
from generator.repository import writing as writer
from generator.repository.compare import ModelPlan, compare
from hf_triton.serving.apply.model_control import ModelControl
from hf_triton.serving.apply.model_update import Outcome, UpdateSettings, update_model
from hf_triton.tritonserver.process import TritonServer
from tests.support.callers import asking
from tests.support.triton import eventually, free_ports, post

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


def step(name: str, says: str, load_s: float = 0.0) -> dict[str, bytes]:
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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("repository")
    for plan in plans(repository, "t1", "m1", "p1"):
        writer.apply(plan)
    with TritonServer(repository, free_ports()) as found:
        assert found.api.load("e") is None
        yield found


def change(server: TritonServer, *says: str, gap: bool = False) -> tuple[Outcome, set[str]]:
    """Changes the steps while requests go on; what became of them."""

    def ask() -> str:
        answer = post(url(server), {"x": "?"})
        return str(answer.body["y"] if answer.status == 200 else answer)

    with asking(ask, ask, pause_s=0.005) as (one, other):
        assert eventually(lambda: len(one + other) >= 2)
        found = plans(server.repository, *says)
        settings = UpdateSettings(60.0, force=False)
        outcome = update_model(found, (), ModelControl(server.api), settings, gap=gap)
        num_answers = len(one + other)
        assert eventually(lambda: len(one + other) >= num_answers + 3)  # one was asked for after it
    return outcome, set(one + other)


def url(server: TritonServer) -> str:
    return f"http://{server.listen.address(server.listen.http_port)}/v2/models/e/generate"


def states(server: TritonServer, version: str) -> set[str]:
    """Of that version of the steps."""
    index = server.api.index()
    return {entry.state for entry in index if entry.version == version and entry.model in STEPS}


def test_no_request_passes_from_an_old_step_to_a_new_one(server: TritonServer) -> None:
    outcome, answers = change(server, "t2", "m2", "p2")
    assert outcome.failure == ""
    assert answers == {"? t1 m1 p1", "? t2 m2 p2"}
    assert states(server, "2") == {"READY"}
    assert eventually(lambda: states(server, "1") == {"UNAVAILABLE"}), "its processes have ended"
    assert all(plan.is_current for plan in plans(server.repository, "t2", "m2", "p2"))

    outcome, answers = change(server, "t3", "broken", "p3")
    assert "no weights" in outcome.failure
    assert answers == {"? t2 m2 p2"}
    assert all(plan.is_current for plan in plans(server.repository, "t2", "m2", "p2"))

    outcome, answers = change(server, "t2", "m2", "p4")
    assert (outcome.failure, outcome.loaded) == ("", {"e_postprocessing": 3})
    assert answers == {"? t2 m2 p2", "? t2 m2 p4"}


def test_with_a_gap_no_request_passes_from_an_old_step_to_a_new_one_either(
    server: TritonServer,
) -> None:
    before, after = post(url(server), {"x": "?"}).body["y"], "? t5 m5 p5"
    for says in (("t5", "m5", "p5"), ("t6", "broken", "p6")):
        outcome, answers = change(server, *says, gap=True)
        refused = {answer for answer in answers if answer.startswith("Answer(status=")}
        assert refused, "nobody met the gap"
        assert answers - {before, after} == refused, answers
        told = re.search(r"no weights; version \d+ is loaded again", outcome.failure)
        assert bool(told) == ("broken" in says), outcome.failure
        assert post(url(server), {"x": "?"}).body["y"] == after
    assert all(plan.is_current for plan in plans(server.repository, "t5", "m5", "p5"))
