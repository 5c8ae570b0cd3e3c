"""Arms on a real server, with models that load in a moment: the split and its changes, a stream, an
arm that dies. The rest of routing is tests/model/engine/runtime/test_routing.py's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from generator.spec import task_folders as templates
from hf_triton.cli.verbs.generate import generate
from tests.support.triton import (
    ROOT,
    Triton,
    copy_task,
    echo_templates,
    eventually,
    post_for_events,
    serving,
)

_MODELS = """\
defaults: {{task: arm, model: nobody/echo}}
models:
  - name: m
    options: {{answers: "own:"}}
    canary:
      arms:
        - {{name: stable, weight: {stable}}}
        - {{name: new, weight: {new}, options: {{answers: "new:"}}}}
        - {{name: other, weight: {other}, to: other}}
  - name: other
    options: {{answers: "other:", answer_s: 0.3}}
  - name: whole
    streaming: false
    options: {{answers: "own:"}}
    canary: {{arms: [{{name: a, weight: 75}}, {{name: b, weight: 25, options: {{answers: "b:"}}}}]}}
"""


class Arms:
    """The server, and its models.yaml."""

    def __init__(self, triton: Triton, folder: Path) -> None:
        self.triton, self._folder = triton, folder

    def route(self, stable: float = 0, new: float = 0, other: float = 0) -> None:
        """Changes the weights of ``m``, and waits until the running model has seen it."""
        write(self._folder, stable, new, other)
        generate(self._folder / "models.yaml", self._folder / "model_repository")
        wanted = {"stable": stable, "new": new, "other": other}
        assert eventually(lambda: all(self.weight(arm) == wanted[arm] for arm in wanted))

    def weight(self, arm: str) -> float:
        """In percent; below 0 where the model has not told yet: it does once a second."""
        try:
            return self.triton.metric("hf_triton_arm_weight", model="m", arm=arm)
        except AssertionError:
            return -1.0

    def counted(self, arm: str, outcome: str, model: str = "m") -> float:
        labels = {"model": model, "arm": arm, "outcome": outcome}
        return self.triton.metric("hf_triton_arm_requests_total", **labels)

    def ask(self, model: str = "m", text: str = "hi", **parameters: object) -> str:
        answer = self.triton.generate(model, text_input=text, **parameters)
        assert answer.status == 200, answer.body
        return str(answer.body["text_output"])

    def ask_many(self, number: int, model: str = "m") -> Counter[str]:
        """The answers to requests of sixteen callers at once."""
        with ThreadPoolExecutor(16) as pool:
            return Counter(pool.map(lambda _: self.ask(model), range(number)))

    def stub(self, model: str) -> int:
        """The process that runs a model."""
        mark = f"{self._folder}/model_repository/{model}/1/model.py".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (folder / "cmdline").read_bytes():
                    return int(folder.name)
        raise AssertionError(f"no process runs {model}")


def write(folder: Path, stable: float, new: float, other: float) -> str:
    text = _MODELS.format(stable=stable, new=new, other=other)
    (folder / "models.yaml").write_text(text, encoding="utf-8")
    return text


def arm_templates(folder: Path) -> Path:
    """A model_templates/ with the task ``arm``, and what real tasks have beside them."""
    echo_templates(folder)
    shutil.rmtree(folder / "front")
    copy_task("arm_task", folder / "arm")
    shutil.copytree(ROOT / "model_templates/front", folder / "front")
    return folder


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arms]:
    folder = tmp_path_factory.mktemp("canary")
    task_folders = arm_templates(folder / "templates")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates, "default_directory", lambda: task_folders)
        with serving(write(folder, 90, 10, 0), folder) as triton:
            yield Arms(triton, folder)


def test_requests_are_split_by_weight_at_once(arms: Arms) -> None:
    arms.route(stable=90, new=10)
    # An arm that came up after its model is found within a second; ten requests are a block.
    assert eventually(lambda: "new:hi" in arms.ask_many(10))
    assert arms.ask_many(200) == {"own:hi": 180, "new:hi": 20}
    assert eventually(lambda: "b:hi" in arms.ask_many(4, "whole"))
    assert arms.ask_many(40, "whole") == {"own:hi": 30, "b:hi": 10}
    assert arms.ask("m_new") == "new:hi"
    assert arms.ask_many(5, "other") == {"other:hi": 5}


def test_a_stream_comes_through_an_arm_piece_by_piece(arms: Arms) -> None:
    arms.route(new=100)
    url = arms.triton.url("m_stream", "generate_stream")
    status, events = post_for_events(url, {"text_input": "one two three"})
    assert status == 200
    assert [event["text_output"] for event in events] == ["new:one", "new:two", "new:three"]
    assert arms.ask(text="one two three") == "new:one two three"


def test_requests_of_an_arm_that_dies_are_answered_by_the_own(arms: Arms) -> None:
    arms.route(other=100)
    fallbacks = arms.counted("other", "fallback")
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(arms.ask) for _ in range(20)]
        time.sleep(0.1)  # most are on their way then
        os.kill(arms.stub("other_stream"), signal.SIGKILL)
        found = Counter(answer.result() for answer in answers)
    assert set(found) <= {"own:hi", "other:hi"}
    assert arms.ask_many(20) == {"own:hi": 20}
    gone = found["own:hi"] + 20
    assert eventually(lambda: arms.counted("other", "fallback") == fallbacks + gone)
    for action in ("unload", "load"):
        for model in ("other", "other_stream"):
            assert arms.triton.control(model, action).status == 200
    assert eventually(lambda: arms.ask() == "other:hi")
