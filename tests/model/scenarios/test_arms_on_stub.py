"""Every kind of task as an arm of another model, in this process: what the arm answers comes back
as its own model would have answered it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from hf_triton.runtime.link import protocol
from tests.scenarios.stub_endpoint import StubEndpoint
from tests.support.triton import ROOT

_DEMO = ROOT / "demo"
_NUMBERS = itertools.count()
_CANARY = "canary: {arms: [{name: own, weight: 0}, {name: arm, weight: 100, %s}]}"
MODELS_YAML = f"""\
models:
  - name: text
    task: text-generation
    model: {_DEMO}/model
    {_CANARY % "options: {default_max_tokens: 40}"}
  - name: classes
    task: text-classification
    model: {_DEMO}/classifier
    options: {{top_k: 1}}
    {_CANARY % "options: {top_k: -1}"}
  - name: pipe
    task: pipeline
    model: {_DEMO}/classifier
    options: {{pipeline: text-classification}}
    {_CANARY % "to: pipe-too"}
  - name: pipe-too
    task: pipeline
    model: {_DEMO}/classifier
    options: {{pipeline: text-classification, parameters: '{{"top_k": 2}}'}}
"""
_ENGINES = ["text_stream", "text_arm_stream", "classes", "classes_arm", "pipe", "pipe-too"]


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubEndpoint]:
    from hf_triton.cli.verbs.generate import generate

    folder = tmp_path_factory.mktemp("arms")
    (folder / "models.yaml").write_text(MODELS_YAML, encoding="utf-8")
    generate(folder / "models.yaml", folder / "repository")
    endpoint = StubEndpoint(folder / "repository")
    # Arms are looked for while models serve, so in a server of their own all the time.
    identity = f"arms-{os.getpid()}-{next(_NUMBERS)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(endpoint, "_server_identity", identity)
        patch.setattr(protocol, "server_identity", lambda: identity)
        for arm_first in reversed(_ENGINES):
            endpoint.model(arm_first)
        yield endpoint
        endpoint.close()


def _counted(stub: StubEndpoint, model: str) -> dict[str, int]:
    """How the requests of a model's other arm ended."""
    intake: Any = stub.model(model).model.intake
    outcomes = intake._routing._counts._arms["arm"].outcomes
    return {name: number for name, number in outcomes.items() if number}


def test_a_text_is_generated_by_an_arm_whole_and_streamed(stub: StubEndpoint) -> None:
    body = {"text_input": "I am going", "return_num_output_tokens": True}
    status, whole = stub.generate("text", body)
    assert (status, whole["num_output_tokens"]) == (200, 40)
    status, pieces = stub.generate_stream("text_stream", {**body, "stream": True})
    assert status == 200
    assert sum(piece["num_output_tokens"] for piece in pieces) == 40  # late ones come together
    assert len(pieces) > 1
    assert "".join(piece["text_output"] for piece in pieces) == whole["text_output"]
    assert _counted(stub, "text_stream")["answered"] == 2


def test_an_arm_refuses_as_its_model_does(stub: StubEndpoint) -> None:
    before = _counted(stub, "text_stream").get("refused", 0)
    status, answer = stub.generate("text", {"text_input": "x", "top_p": 2.0})
    assert status == 400
    assert answer["error"].startswith("top_p: got 2")
    assert _counted(stub, "text_stream")["refused"] == before + 1


def test_a_text_is_classified_by_an_arm(stub: StubEndpoint) -> None:
    status, answer = stub.generate("classes", {"text_input": "I love this film.", "user": "u"})
    assert status == 200
    assert answer["label"] == ["POSITIVE", "NEGATIVE"]
    assert _counted(stub, "classes") == {"answered": 1}


def test_a_pipeline_answers_as_an_arm(stub: StubEndpoint) -> None:
    status, answer = stub.generate("pipe", {"inputs": "I love this film."})
    assert status == 200
    assert answer["output"].count("label") == 2
    assert _counted(stub, "pipe") == {"answered": 1}
