"""Models are loaded and reloaded, on a server without processes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import cast

import pytest

from generator.repository.writing import locked_model
from hf_triton.serving.supervision import model_loader
from hf_triton.serving.supervision.model_loader import ModelLoader
from hf_triton.serving.supervision.served_models import ServedModels
from hf_triton.tritonserver.http_api import ServerApi
from hf_triton.tritonserver.model_state import Cause, ModelStates, Seen, State
from hf_triton.tritonserver.restart_policy import Restarts
from hf_triton.tritonserver.stubs import End
from hf_triton.tritonserver.triton_texts import PROCESS_DIED
from tests.support.triton import eventually
from tests.unit.supervision.fake_server import FakeEnds, FakeServer, deaths_of

ENSEMBLE = """\
platform: "ensemble"
ensemble_scheduling { step [ { model_name: "e_one" }, { model_name: "e_two" } ] }
"""
FRONT = 'parameters [ { key: "hf_triton_engine" value: { string_value: "f_stream" } } ]\n'


class Clinic:
    """A loader and all that it works on."""

    def __init__(self, repository: Path, server: FakeServer, *models: str, restarts: int = 5):
        self.server, self.said = server, list[str]()
        self.states = ModelStates(restarts)
        self.ends = FakeEnds(End())
        self.served = ServedModels(repository, models)
        for folder in ("e", "f"):
            (repository / folder).mkdir(exist_ok=True)
        (repository / "e" / "config.pbtxt").write_text(ENSEMBLE)
        (repository / "f" / "config.pbtxt").write_text(FRONT)
        args = deaths_of(server, self.ends), self.served, self.states, self.said.append
        self.loader = ModelLoader(cast(ServerApi, server), *args, lambda: ["the last line"])
        self.loader.look(sweep=True)

    def heal(self) -> None:
        """One look, and the wait for what comes of it."""
        self.loader.look(sweep=True)
        assert eventually(lambda: not self.is_healing()), self.said

    def state(self, folder: str) -> State:
        return self.states[folder].state

    def is_healing(self) -> bool:
        return self.states.any(State.HEALING)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Restarts without delays; the delays that would have been."""
    delays: list[float] = []
    next_delay_s = Restarts.next_delay_s

    def at_once(restarts: Restarts) -> float:
        delays.append(next_delay_s(restarts))
        return 0.0

    monkeypatch.setattr(Restarts, "next_delay_s", at_once)
    return delays


def test_an_engine_is_loaded_before_its_front_and_both_are_one_model(tmp_path: Path) -> None:
    server = FakeServer()
    server.unready.add("a")
    clinic = Clinic(tmp_path, server, "f", "a")
    clinic.loader.begin(["f", "a"])
    assert eventually(lambda: clinic.states.are_ready(["f_stream", "f", "a"]))
    loaded = [call for call in server.calls if call != "load a"]
    assert loaded == ["load f_stream", "load f"]
    assert eventually(lambda: len(clinic.said) == 2)
    told = sorted(line.partition(" after")[0] for line in clinic.said)
    assert told == ["a is loaded, but says that it is not ready,", "f is ready"]


def test_a_front_is_not_loaded_without_its_engine_and_the_failure_is_told_once(
    tmp_path: Path,
) -> None:
    server = FakeServer()
    server.refusals["f_stream"] = ["f_stream: out of memory"]
    clinic = Clinic(tmp_path, server, "f")
    clinic.loader.begin(["f"])
    assert eventually(lambda: bool(clinic.said))
    assert clinic.said == ["model 'f' failed to load: out of memory"]
    assert server.calls == ["load f_stream"]
    assert clinic.state("f") is clinic.state("f_stream") is State.FAILED
    assert clinic.states["f"].reason == "out of memory"


def test_an_ensemble_whose_step_failed_is_not_ready_though_triton_says_that_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer("e_one")
    monkeypatch.setattr(server, "load", lambda name: None)
    clinic = Clinic(tmp_path, server, "e")
    clinic.loader.begin(["e"])
    assert eventually(lambda: bool(clinic.said))
    assert clinic.said == ["model 'e' failed to load: loaded, but not ready"]


def test_what_died_is_unloaded_and_loaded_and_nothing_else_is_touched(tmp_path: Path) -> None:
    server = FakeServer("a", "b")
    clinic = Clinic(tmp_path, server, "a", "b")
    server.kill("a")
    clinic.heal()
    assert server.calls == ["unload a", "load a"]
    assert len(server.pids("a")) == 1
    state = clinic.states["a"]
    assert (state.num_deaths, state.num_restarts) == (1, 1)
    assert clinic.said[0].startswith(
        "model 'a': its Python process died; it is loaded again (1 death"
    )
    assert clinic.said[1].startswith("a is ready again after")


def test_an_engine_is_brought_back_without_its_front_and_told_by_the_models_name(
    tmp_path: Path,
) -> None:
    server = FakeServer("f", "f_stream")
    clinic = Clinic(tmp_path, server, "f")
    server.kill("f_stream")
    clinic.heal()
    assert server.calls == ["unload f_stream", "load f_stream"]
    assert clinic.said[0].startswith("model 'f':")


def test_a_front_that_dies_meanwhile_waits_for_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer("f", "f_stream")
    clinic = Clinic(tmp_path, server, "f")
    load, may_load = server.load, threading.Event()

    def load_late(name: str) -> str | None:
        may_load.wait(60)
        return load(name)

    monkeypatch.setattr(server, "load", load_late)
    server.kill("f_stream")
    clinic.loader.look()
    assert eventually(lambda: server.calls == ["unload f_stream"])
    server.kill("f")
    clinic.loader.look()
    assert eventually(lambda: server.calls[1:] == ["unload f"])
    clinic.states.see({"f_stream": Seen(is_ready=True)}, clinic.states.num_changes)
    assert clinic.state("f_stream") is State.HEALING, "its own thread knows"
    may_load.set()
    assert eventually(lambda: not clinic.is_healing())
    assert server.calls[2:] == ["load f_stream", "load f"]


def test_a_step_is_brought_back_and_its_ensemble_where_triton_has_not(tmp_path: Path) -> None:
    server = FakeServer("e_one", "e_two")
    server.configs["e"] = {"backend": "", "platform": "ensemble"}
    clinic = Clinic(tmp_path, server, "e")
    server.kill("e_one")
    clinic.heal()
    assert server.calls == ["unload e_one", "load e_one", "load e"]


def test_a_model_that_no_longer_loads_is_given_up_until_somebody_loads_it(tmp_path: Path) -> None:
    server = FakeServer("a", "b")
    clinic = Clinic(tmp_path, server, "a", "b", restarts=1)
    server.refusals["a"] = ["no weights"] * 2
    server.kill("a")
    clinic.heal()
    assert server.calls == ["unload a", "load a", "load a"]
    assert clinic.state("a") is State.GIVEN_UP
    assert clinic.states["a"].cause is Cause.LOAD_FAILED
    given_up = "no weights; given up after 2 failed loads in a row"
    assert eventually(lambda: given_up in clinic.said[-1])  # the state is told first
    assert "\n    the last line" in clinic.said[-1]
    clinic.heal()
    assert server.calls[-1] == "load a", "it is left alone"
    assert len(server.calls) == 3

    server.load("a")
    clinic.states.see({"a": Seen(is_ready=True)}, clinic.states.num_changes)
    assert clinic.state("a") is State.READY
    clinic.loader.look(sweep=True)
    server.refusals["a"] = ["no weights"]
    server.kill("a")
    clinic.heal()
    assert server.states["a"] == "READY", "old failures are forgiven"


def test_kills_from_outside_are_no_failures_of_the_load(
    tmp_path: Path, no_waiting: list[float]
) -> None:
    server = FakeServer("a")
    clinic = Clinic(tmp_path, server, "a", restarts=1)
    clinic.ends.end = End(Cause.KILLED, "killed by SIGKILL")
    server.refusals["a"] = [PROCESS_DIED] * 7
    server.kill("a")
    clinic.heal()
    assert clinic.state("a") is State.READY
    assert no_waiting == [0, 1, 2, 4, 8, 16, 32, 60]
    assert "died while loading (killed by SIGKILL); it is loaded again" in clinic.said[1]


def test_who_changes_the_model_goes_first_and_what_is_healed_then_is_left_alone(
    tmp_path: Path,
) -> None:
    server = FakeServer("a")
    clinic = Clinic(tmp_path, server, "a")
    with locked_model(tmp_path / "a"):
        server.kill("a")
        clinic.loader.look()
        assert clinic.states["a"].reason == "its Python process died"
        assert server.calls == []
        server.unload("a")
        server.load("a")
    assert eventually(lambda: not clinic.is_healing())
    assert server.calls == ["unload a", "load a"], "not once more"
    assert clinic.said == []
    assert (clinic.states["a"].num_deaths, clinic.states["a"].num_restarts) == (0, 0)


def test_a_model_that_is_taken_away_while_it_waits_is_not_loaded_again(tmp_path: Path) -> None:
    server = FakeServer("a", "b")
    clinic = Clinic(tmp_path, server, "a", "b")
    clinic.served.record()
    server.kill("a")
    with locked_model(tmp_path / "a"):
        clinic.loader.look()
        ServedModels(tmp_path, ["b"]).record()
    assert eventually(lambda: not clinic.is_healing())
    assert "load a" not in server.calls


def test_a_model_is_brought_back_by_a_server_that_did_not_answer_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_loader, "TRIED_AGAIN_S", 0.01)
    server = FakeServer("a")
    clinic = Clinic(tmp_path, server, "a")
    unload = server.unload

    def unload_and_fall_silent(name: str) -> str | None:
        failure = unload(name)
        server.is_reachable = False
        threading.Timer(0.1, lambda: setattr(server, "is_reachable", True)).start()
        return failure

    monkeypatch.setattr(server, "unload", unload_and_fall_silent)
    server.kill("a")
    clinic.heal()
    assert server.states["a"] == "READY"
    assert clinic.states["a"].num_restarts == 1


def test_a_model_that_does_not_come_back_with_the_server_is_tried_again(tmp_path: Path) -> None:
    server = FakeServer("f_stream")
    server.refusals["f"] = ["out of memory"]
    clinic = Clinic(tmp_path, server, "f")
    clinic.states["f"].ready()
    clinic.states.server_ended()
    clinic.loader.begin(["f"])
    assert eventually(lambda: not clinic.is_healing())
    assert server.calls == ["load f", "load f"], "its engine is there"
    assert clinic.said[0].startswith("model 'f': failed to load: out of memory; it is loaded again")
    assert clinic.said[1].startswith("f is ready again after")


def test_what_no_longer_answers_is_named_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer("a")
    clinic = Clinic(tmp_path, server, "a")
    killed: list[frozenset[int]] = []

    def kill(loader: ModelLoader, folder: str, pids: frozenset[int]) -> None:
        killed.append(pids)
        server.kill(folder)

    monkeypatch.setattr(ModelLoader, "kill", kill)
    before = frozenset(server.pids("a"))
    clinic.loader.end_processes("a", Cause.NOT_READY, "it said that it is not ready")
    clinic.heal()
    assert killed[0] == before
    assert clinic.said[0].startswith("model 'a': it said that it is not ready; it is loaded again")
    load = server.load

    def load_and_be_ended(name: str) -> str | None:
        clinic.loader.end_processes(name, Cause.HUNG, "it was stopped")
        return load(name)

    monkeypatch.setattr(server, "load", load_and_be_ended)
    monkeypatch.setattr(ModelLoader, "kill", lambda *_: None)
    for _ in range(2):
        server.kill("a")
        clinic.heal()
        assert clinic.states["a"].last_death.reason == "its Python process died"


def test_nothing_is_loaded_after_the_end(tmp_path: Path) -> None:
    server = FakeServer("a")
    clinic = Clinic(tmp_path, server, "a")
    threads = threading.active_count()
    with locked_model(tmp_path / "a"):
        server.kill("a")
        clinic.loader.look()
        clinic.loader.end()
    assert eventually(lambda: threading.active_count() <= threads)
    assert server.calls == []


def test_a_machine_that_has_no_thread_left_for_a_while_loses_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer("b", counts={"b": 2})
    clinic = Clinic(tmp_path, server, "a", "b")
    with monkeypatch.context() as patch:

        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", start)
        clinic.loader.begin(["a"])
        assert clinic.state("a") is State.READY
        server.kill("b")
        clinic.loader.look(sweep=True)
        assert server.calls == ["load a"]
    killed: list[frozenset[int]] = []
    monkeypatch.setattr(ModelLoader, "kill", lambda _, folder, pids: killed.append(pids))
    others = frozenset(server.pids("b"))
    clinic.heal()
    assert clinic.state("b") is State.READY
    assert killed == [others], "what still answers of it is ended at once"


def test_a_server_that_goes_away_ends_it_without_a_word(tmp_path: Path) -> None:
    server = FakeServer("a")
    clinic = Clinic(tmp_path, server, "a")
    with locked_model(tmp_path / "a"):
        server.kill("a")
        clinic.loader.look()
        server.is_reachable = False
    threads = threading.active_count()
    clinic.loader.end()
    assert eventually(lambda: threading.active_count() < threads)
    assert clinic.said == []


def test_a_server_that_ends_between_unload_and_load_leaves_no_model_being_healed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer("a")
    clinic = Clinic(tmp_path, server, "a")
    unload = server.unload

    def unload_at_the_end(name: str) -> str | None:
        failure = unload(name)
        clinic.loader.end()
        return failure

    monkeypatch.setattr(server, "unload", unload_at_the_end)
    threads = threading.active_count()
    server.kill("a")
    clinic.loader.look()
    assert eventually(lambda: server.calls == ["unload a"] and threading.active_count() <= threads)
    clinic.states.server_ended()
    assert clinic.state("a") is State.HEALING
    assert not clinic.states["a"].in_hand, "whoever starts the server loads it"
    assert clinic.said == []
