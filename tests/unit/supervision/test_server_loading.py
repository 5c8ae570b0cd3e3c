"""Loading models into a server, without one."""

from __future__ import annotations

import json

import pytest

from hf_triton.tritonserver.http_api import ServerApi
from hf_triton.tritonserver.listen import Listen
from hf_triton.tritonserver.loading import ModelLoader


class BusyServer(ServerApi):
    """Loads at once; its first answers come too late."""

    num_late = 2
    state = "READY"

    def __init__(self) -> None:
        super().__init__(Listen("127.0.0.1", 0))
        self.asked = iter(range(1000))

    def load(self, name: str) -> str | None:
        return None

    def _call(self, method: str, path: str, timeout_s: float | None) -> tuple[int, bytes]:
        if next(self.asked) < self.num_late:
            raise TimeoutError
        if path.endswith("/ready"):
            return self._ready(timeout_s or 0.0), b""
        names = ("demo", "demo_stream")
        found = [{"name": name, "version": "1", "state": self.state} for name in names]
        return 200, json.dumps(found).encode()

    def _ready(self, timeout_s: float) -> int:
        return 200


class DeadServer(BusyServer):
    num_late = 1000


class StepFailed(BusyServer):
    state = "UNAVAILABLE"


class ModelHangs(BusyServer):
    """From 26.03 on Triton asks models themselves, and answers with an error after 5 s."""

    def _ready(self, timeout_s: float) -> int:
        if timeout_s <= 5.0:
            raise TimeoutError
        return 400


@pytest.mark.parametrize(
    "server, failure, is_ready, loaded",
    [
        (BusyServer(), None, True, {"demo"}),
        (ModelHangs(), None, False, {"demo"}),
        (StepFailed(), "loaded, but not ready", False, set()),
        (DeadServer(), "the server went away", False, set()),
    ],
    ids=["it answers late", "the model hangs", "a step of it failed", "it never answers"],
)
def test_what_a_server_says_of_a_model_that_it_has_loaded(
    server: ServerApi, failure: str | None, is_ready: bool, loaded: set[str]
) -> None:
    loader = ModelLoader(server)
    loader.begin(["demo"])

    outcome = loader.next_outcome(timeout_s=60)

    assert outcome is not None
    assert (outcome.failure, outcome.is_ready) == (failure, is_ready)
    assert loader.ready == loaded


class RecordingServer(BusyServer):
    """Remembers what it loaded, and refuses what it is told to."""

    num_late = 0

    def __init__(self, refused: str = "") -> None:
        super().__init__()
        self.refused = refused
        self.loaded: list[str] = []

    def load(self, name: str) -> str | None:
        self.loaded.append(name)
        return f"{name}: out of memory" if name == self.refused else None


def engine_of(model: str) -> str | None:
    return {"demo": "demo_stream"}.get(model)


@pytest.mark.parametrize("asked", [["demo"], ["demo", "demo_stream"], ["demo_stream", "demo"]])
def test_an_engine_is_loaded_before_its_front_and_both_are_one_model(asked: list[str]) -> None:
    server = RecordingServer()
    loader = ModelLoader(server, engine_of)
    loader.begin(asked)
    assert loader.num_loading == 1

    outcome = loader.next_outcome(timeout_s=60)

    assert outcome is not None
    assert (outcome.model, outcome.failure) == ("demo", None)
    assert server.loaded == ["demo_stream", "demo"]
    assert (loader.ready, loader.num_loading) == ({"demo"}, 0)


def test_a_front_is_not_loaded_without_its_engine_and_the_failure_is_told_once() -> None:
    server = RecordingServer(refused="demo_stream")
    loader = ModelLoader(server, engine_of)
    loader.begin(["demo"])

    outcome = loader.next_outcome(timeout_s=60)

    assert outcome is not None
    assert (outcome.model, outcome.failure) == ("demo", "out of memory")
    assert server.loaded == ["demo_stream"]
    assert loader.next_outcome(timeout_s=0.1) is None
    assert not loader.ready
