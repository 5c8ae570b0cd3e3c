"""A streaming model is replaced with a gap while it is asked: callers are told, then answered."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from generator.apply.session import ApplyOptions, Session
from generator.apply.target import Target
from generator.errors import NoRoomError
from generator.server.http_api import ServerApi
from tests.support.triton import DEMO_MODEL, Triton, eventually, post, serving

pytestmark = [pytest.mark.server, pytest.mark.slow]

MODELS_YAML = f"""\
models:
  - name: demo
    task: text-generation
    model: {DEMO_MODEL}
"""
CHANGED = MODELS_YAML + "    options: {max_queue_size: 99}\n"
_FREE = re.compile(r'(hf_triton_memory_bytes\{.*kind="free".*\}) .*')


@pytest.fixture
def triton(tmp_path: Path) -> Iterator[Triton]:
    with serving(MODELS_YAML, tmp_path) as running:
        yield running


@pytest.fixture
def full_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models' own numbers, but no byte is free."""
    asked = ServerApi.metrics
    monkeypatch.setattr(ServerApi, "metrics", lambda api: _FREE.sub(r"\1 0", asked(api)))


class Callers:
    """Asks on and on; ``said`` are the statuses in order, each once until it changes."""

    def __init__(self, triton: Triton) -> None:
        self.said: list[int] = []
        self.errors: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(triton,))
        self._thread.start()

    def _ask(self, triton: Triton) -> None:
        inputs = [
            {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["Once"]},
            {"name": "max_tokens", "datatype": "INT32", "shape": [1], "data": [4]},
        ]
        has_ended = False
        while not has_ended:
            has_ended = self._stop.is_set()
            answer = post(triton.url("demo", "infer"), {"inputs": inputs})
            if self.said[-1:] != [answer.status]:
                self.said.append(answer.status)
            if answer.status != 200:
                self.errors.add(answer.body["error"])

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


def test_callers_get_503_in_the_gap_and_answers_before_and_after(
    triton: Triton, full_machine: None
) -> None:
    config = triton.server.repository.parent / "models.yaml"
    target = Target(triton.server.api, "the server")
    lines: list[str] = []

    def apply(*, allow_gap: bool) -> int:
        options = ApplyOptions(allow_gap=allow_gap)
        session = Session(triton.server.repository, target, options, lines.append, lines.append)
        return session.apply(config)

    config.write_text(CHANGED, encoding="utf-8")
    with pytest.raises(NoRoomError):
        apply(allow_gap=False)
    assert triton.server.api.is_model_ready("demo_stream", "1")
    (told,) = [line for line in lines if "no room" in line]
    (size,) = map(float, re.findall(r"needs ([0-9.]+) GiB on cpu", told))
    assert 0.1 < size < 2, told  # Python, torch, and a small model
    callers = Callers(triton)
    try:
        assert eventually(lambda: callers.said == [200])
        assert apply(allow_gap=True) == 0
    finally:
        callers.end()
    assert triton.server.api.is_model_ready("demo_stream", "2")
    assert callers.said == [200, 503, 200], (callers.said, callers.errors)
    in_the_gap = {
        "the model is being unloaded: try again",
        "no engine runs that could answer: load the model demo_stream",
        "the engine demo_stream went away before it answered: try again",
    }
    assert callers.errors <= in_the_gap, callers.errors
