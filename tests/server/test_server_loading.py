"""Loading models into a server, without one."""

from __future__ import annotations

from generator.server_api import ServerApi
from generator.server_loading import ModelLoader


class BusyServer(ServerApi):
    """Loads at once; its first answers to whether a model is ready come too late."""

    num_late = 3

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 0)
        self.asked = iter(range(1000))

    def load(self, name: str) -> str | None:
        return None

    def is_model_ready(self, name: str) -> bool:
        if next(self.asked) < self.num_late:
            raise TimeoutError
        return True


class DeadServer(BusyServer):
    num_late = 1000


def test_a_model_whose_readiness_is_answered_late_is_ready() -> None:
    loader = ModelLoader(BusyServer())
    loader.begin(["demo"])

    outcome = loader.next_outcome(timeout_s=10)

    assert outcome is not None
    assert outcome.failure is None
    assert loader.ready == {"demo"}


def test_a_server_that_never_answers_has_gone_away() -> None:
    loader = ModelLoader(DeadServer())
    loader.begin(["demo"])

    outcome = loader.next_outcome(timeout_s=10)

    assert outcome is not None
    assert outcome.failure == "the server went away"
