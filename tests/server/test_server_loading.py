"""Loading models into a server, without one."""

from __future__ import annotations

import pytest

from generator.server.http_api import ServerApi
from generator.server.listen import Listen
from generator.server.loading import ModelLoader


class BusyServer(ServerApi):
    """Loads at once; its first answers to whether a model is ready come too late."""

    num_late = 3

    def __init__(self) -> None:
        super().__init__(Listen("127.0.0.1", 0))
        self.asked = iter(range(1000))

    def load(self, name: str) -> str | None:
        return None

    def is_model_ready(self, name: str, version: str = "", timeout_s: float = 2.0) -> bool:
        if next(self.asked) < self.num_late:
            raise TimeoutError
        return True


class DeadServer(BusyServer):
    num_late = 1000


def test_a_model_whose_readiness_is_answered_late_is_ready() -> None:
    loader = ModelLoader(BusyServer())
    loader.begin(["demo"])

    outcome = loader.next_outcome(timeout_s=60)

    assert outcome is not None
    assert outcome.failure is None
    assert loader.ready == {"demo"}


def test_a_server_that_never_answers_has_gone_away() -> None:
    loader = ModelLoader(DeadServer())
    loader.begin(["demo"])

    outcome = loader.next_outcome(timeout_s=60)

    assert outcome is not None
    assert outcome.failure == "the server went away"


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
    assert loader.model_of("demo_stream") == "demo"
    assert loader.model_of("demo") == "demo"


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
