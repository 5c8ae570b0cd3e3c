"""Apply's decisions and refusals, on a server that loads in no time."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from generator.errors import EXIT_INTERRUPTED, EXIT_OK
from generator.repository import staging, version_folders, writing
from generator.repository.plan import make_plan
from generator.repository.writing import locked_model
from generator.spec import triton_models
from hf_triton.runtime.link.protocol import VERSION as LINK_VERSION
from hf_triton.serving.apply import model_update, session
from hf_triton.serving.apply.model_update import ApplyOptions, write_folder
from hf_triton.serving.apply.planning import plan_apply
from hf_triton.serving.apply.target import Target
from hf_triton.tritonserver.state_file import (
    SERVED_FILE,
    running_servers,
    served_models,
    write_state,
)
from tests.support.apply_bench import Bench, bench, tell_state
from tests.support.fake_control import FakeTriton

BOTH = "- {name: a}\n- {name: s, streaming: true}\n"
SLOWER = "options: {answer_s: 0.01}"
FAILING = 'options: {fail: "no weights"}'
CHANGED = f"- {{name: a, {SLOWER}}}\n- {{name: s, streaming: true}}\n"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with bench("fake", tmp_path, monkeypatch) as found:
        yield found


def fake(made: Bench) -> FakeTriton:
    assert made.fake is not None
    return made.fake


def recorded(made: Bench) -> tuple[str, ...]:
    found = served_models(made.repository)
    assert found is not None
    return found


def test_nothing_is_loaded_where_nothing_has_changed(made: Bench) -> None:
    ran = made.apply()
    assert (ran.code, ran.err) == (0, "")
    assert not fake(made).events


def test_a_dry_run_says_what_would_be_done_and_does_nothing(made: Bench) -> None:
    made.say(f"- {{name: s, streaming: true, {SLOWER}}}\n- {{name: new}}\n")
    ran = made.apply("--dry-run")
    assert ran.code == 1
    assert ran.out.splitlines() == [
        "change     s_stream: version 1 -> 2 (config.pbtxt, model.json)",
        "add        new: config.pbtxt, model.json, model.py",
        "remove     a: a",
    ]
    assert not (made.repository / "new").exists()
    made.say(BOTH)
    assert made.apply("--dry-run").code == 0


def test_a_folder_that_was_changed_in_place_is_loaded_anew(made: Bench, tmp_path: Path) -> None:
    weights = tmp_path / "weights" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"old")
    made.applied(f"- {{name: a}}\n- {{name: s, streaming: true, model: {weights.parent}}}\n")
    assert made.run("diff").code == 0
    weights.write_bytes(b"new")  # as large, but later
    os.utime(weights, (2e9, 2e9))
    diff = made.run("diff")
    assert diff.code == 1
    assert '+parameters { key: "hf_triton_local_files" value { string_value: "1 files' in diff.out
    assert made.apply().code == 0
    assert (made.ready("s_stream"), made.ready("s")) == ({3}, {1})


def test_an_engine_is_loaded_before_its_front_and_unloaded_after_it(made: Bench) -> None:
    made.applied("- {name: new, streaming: true}\n")
    asked = fake(made).events
    assert asked.index("load new_stream") < asked.index("load new")
    assert asked.index("unload s") < asked.index("unload s_stream")


def test_models_of_others_are_left_alone(made: Bench) -> None:
    shutil.copytree(made.repository / "a", made.repository / "theirs")
    (made.repository / "theirs" / ".hf-triton.json").unlink()
    config = made.repository / "theirs" / "config.pbtxt"
    config.write_text(config.read_text().replace('"a"', '"theirs"'))
    assert made.api.load("theirs") is None
    made.applied(CHANGED)
    assert made.ready("theirs") == {1}


def test_a_model_that_was_pruned_while_it_was_served_is_unloaded(made: Bench) -> None:
    made.say("- {name: s, streaming: true}\n")
    made.run("prune")
    assert made.apply().code == 0
    assert made.ready("a") == set()
    assert not (made.repository / "a").exists()


def test_what_generate_wrote_under_a_running_server_comes_up_as_a_new_version(made: Bench) -> None:
    made.say(CHANGED)
    assert "still serves what it has loaded; hf-triton apply" in made.run("generate").err
    assert made.run("generate").err == ""
    ran = made.apply()
    assert "change     a: version 1 -> 2 (as it lies on disk)" in ran.out
    assert made.ready("a") == {2}
    assert made.is_current()


def test_a_model_that_is_not_ready_is_loaded(made: Bench) -> None:
    made.api.unload("a")
    assert "add        a" in made.apply().out
    assert made.ready("a") == {1}


def test_versions_that_served_before_go_with_the_next_change(made: Bench) -> None:
    for answer_s in (0.01, 0.02, 0.03, 0.04):
        made.applied(f"- {{name: a, options: {{answer_s: {answer_s}}}}}\n")
    folders = {path.name for path in (made.repository / "a").iterdir() if path.is_dir()}
    assert folders == {"4", "5"}
    made.applied("- {name: a, version_policy: {all: {}}}\n")
    assert made.ready("a") == {4, 5, 6}


def test_edited_files_are_not_overwritten_unless_forced(made: Bench) -> None:
    made.say(CHANGED)
    (made.repository / "a" / "1" / "model.json").write_text("mine")
    ran = made.apply()
    assert ran.code == 1
    assert "model 'a' failed: model_repository/a/1/model.json: edited by hand" in ran.err
    assert made.ready("a") == {1}
    assert made.apply("--force").code == 0
    assert made.ready("a") == {2}
    assert (made.repository / "a" / "2" / "model.json").read_text() != "mine"


EDITED = "# mine\n"


def edit(made: Bench, version: int) -> None:
    model = made.repository / "a" / str(version) / "model.py"
    model.write_text(f"{model.read_text()}{EDITED}")


def test_an_edited_model_py_is_loaded_and_goes_on_into_later_versions(made: Bench) -> None:
    edit(made, 1)
    made.applied(BOTH)
    assert made.ready("a") == {2}
    made.applied(CHANGED)
    assert made.ready("a") == {3}
    assert made.is_current()
    assert all(model_at(made, version).endswith(EDITED) for version in (2, 3))
    assert made.apply("--force").code == 0
    assert EDITED not in model_at(made, 4)


def test_an_edited_model_py_that_is_no_python_is_not_tried(made: Bench) -> None:
    (made.repository / "a" / "1" / "model.py").write_text(f"{model_at(made, 1)}def broken(:\n")
    made.say(CHANGED)
    ran = made.apply()
    assert ran.code == 1
    assert "edited by hand, and not valid Python: " in ran.err
    assert made.ready("a") == {1}


def model_at(made: Bench, version: int) -> str:
    return (made.repository / "a" / str(version) / "model.py").read_text()


def test_an_old_version_that_still_has_requests_is_told_of_and_kept(made: Bench) -> None:
    fake(made).held.add("a")
    made.say(CHANGED)
    ran = made.apply("--drain-timeout-s", "0")
    assert ran.code == 0
    assert "a version 1 still answers requests and is unloaded after them" in ran.out


def test_a_part_that_old_requests_need_stays_until_they_end(made: Bench) -> None:
    fake(made).held.add("s")
    made.say("- {name: a}\n- {name: s}\n")
    ran = made.apply("--drain-timeout-s", "0")
    assert ran.code == 1
    assert "s version 1 still has requests after 0 s, so s_stream stays loaded" in ran.err
    assert made.ready("s_stream") == {1}
    fake(made).held.clear()
    assert made.apply().code == 0
    assert made.ready("s_stream") == set()


def test_an_apply_that_is_stopped_before_its_loads_is_told_and_done_by_the_next(
    made: Bench,
) -> None:
    made.say(f"- {{name: s, streaming: true, {SLOWER}}}\n")
    applying = session.Session(made.repository, Target(made.api), ApplyOptions())
    applying.stop()
    assert applying.apply(Path("models.yaml")) == EXIT_INTERRUPTED
    assert (made.ready("a"), made.ready("s_stream")) == ({1}, {1})
    assert recorded(made) == ("a", "s")
    assert made.apply().code == 0
    assert (made.ready("a"), made.ready("s_stream")) == (set(), {2})
    assert recorded(made) == ("s",)


def test_an_apply_changes_all_models_where_no_thread_is_left(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def start_others(thread: threading.Thread) -> None:
        if "(work)" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    made.say(CHANGED)
    monkeypatch.setattr(threading.Thread, "start", start_others)
    applying = session.Session(made.repository, Target(made.api), ApplyOptions())
    assert applying.apply(Path("models.yaml")) == EXIT_OK
    assert made.ready("a") == {2}


def test_a_front_that_fails_takes_its_new_engine_back(made: Bench) -> None:
    front = made.repository / "s" / "2"
    made.say("- {name: a}\n- {name: s, streaming: true, max_batch_size: 4}\n")
    load = fake(made).load

    def break_the_front(name: str) -> None:
        if name == "s" and front.exists():
            (front / "model.json").write_text('{"options": {"fail": "no front"}}')
        load(name)

    fake(made).load = break_the_front  # type: ignore[method-assign]
    ran = made.apply()
    assert ran.code == 1
    assert "model 's' failed: RuntimeError: no front; version 1 goes on serving" in ran.err
    assert (made.ready("s"), made.ready("s_stream")) == ({1}, {1})
    made.say(BOTH)
    assert made.is_current()


def test_versions_that_say_that_they_are_not_ready_are_taken_back(made: Bench) -> None:
    unready = "options: {is_ready: false}"
    made.say(
        f"- {{name: a, {unready}}}\n- {{name: s, streaming: true}}\n- {{name: new, {unready}}}\n"
    )
    ran = made.apply()
    told = "version 2 was loaded, but is not ready; version 1 goes on serving"
    assert f"model 'a' failed: {told}" in ran.err
    assert (made.ready("a"), made.ready("new")) == ({1}, set())


@pytest.mark.parametrize(
    "was_loaded, then, version",
    [(False, CHANGED, 3), (True, CHANGED, 2), (False, BOTH, 1)],
    ids=["written", "loaded", "taken out of the YAML"],
)
def test_killed_after_a_version_was_written_the_next_apply_ends_it(
    made: Bench, was_loaded: bool, then: str, version: int
) -> None:
    made.say(CHANGED)
    plan = make_plan(Path("models.yaml"), made.repository)
    found = plan_apply(plan, made.repository, Target(made.api), force=False)
    write_folder(found.groups[0].folders[0])
    if was_loaded:
        made.api.load("a")
    made.say(then)
    assert made.apply().code == 0
    assert (made.ready("a"), made.is_current()) == ({version}, True)


def test_a_front_and_an_engine_of_another_language_are_unloaded_first(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.applied(BOTH)
    fake(made).events.clear()
    monkeypatch.setattr(triton_models, "LINK_VERSION", LINK_VERSION + 1)
    assert "s: unloaded; requests wait until it is loaded again" in made.applied(BOTH).out
    events = [event for event in fake(made).events if " s" in event]
    assert events == ["unload s", "unload s_stream", "load s_stream", "load s"]
    assert (made.ready("s"), made.ready("s_stream"), made.is_current()) == ({2}, {2}, True)


def canary(weight: int) -> str:
    arms = f"[{{name: old, weight: {100 - weight}}}, {{name: new, weight: {weight}, {SLOWER}}}]"
    return f"- {{name: a, canary: {{arms: {arms}}}}}\n- {{name: s, streaming: true}}\n"


def test_weights_change_without_a_load_after_their_arms_are_there_and_before_they_go(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ROUTING_IS_READ_S", 0.0)
    routing = made.repository / "a" / "routing.json"
    first = made.applied(canary(10)).out
    assert first.index("a_new: ready after") < first.index("a: routing written")
    fake(made).events.clear()
    assert "1 routed" in made.applied(canary(50)).out
    assert '"weight": 50' in routing.read_text()
    assert not fake(made).events
    last = made.applied(BOTH).out
    assert last.index("a: routing written") < last.index("a_new: unloaded")
    assert not routing.exists()


def test_without_a_server_there_is_a_word_on_how_to_start_one(made: Bench) -> None:
    for file in made.repository.glob(".hf-triton-server-*"):
        file.unlink()
    ran = made.apply()
    assert ran.code == 1
    assert "no server runs on model_repository on this machine: start one with hf-triton" in ran.err


def test_of_several_servers_one_is_chosen_by_its_port(made: Bench) -> None:
    tell_state(1, metrics_port=1)
    ran = made.apply()
    assert ran.code == 1
    assert f"choose one with --http-port: 1 (process {os.getpid()})" in ran.err
    assert made.apply("--http-port", str(fake(made).port)).code == 0
    assert "none with --http-port 7" in made.apply("--http-port", "7").err
    assert "the server no longer answers" in made.apply("--http-port", "1").err


@pytest.mark.parametrize("verb", [["apply"], ["diff"], ["generate"], ["prune"], ["validate"]])
def test_a_verb_reads_the_file_that_the_server_was_started_with(
    made: Bench, verb: list[str]
) -> None:
    shutil.move("models.yaml", "started.yaml")
    tell_state(fake(made).port, metrics_port=fake(made).port, config="started.yaml")
    made.say("- {name: another}\n")
    ran = made.run(*verb)
    assert ran.code == 0, ran
    read = f"{Path('started.yaml').absolute()} (port {fake(made).port})"
    assert f"hf-triton: reading {read}, with which the server was started" in ran.err
    assert recorded(made) == ("a", "s")
    assert "remove     a: a" in made.apply("--dry-run", "--config", "models.yaml").out


def test_where_servers_have_several_files_or_theirs_is_gone_one_is_asked_for(made: Bench) -> None:
    tell_state(1, metrics_port=1, config="gone.yaml")
    ran = made.run("validate")
    assert (ran.code, "models.yaml (port" in ran.err, "gone.yaml (port 1)" in ran.err) == (
        2,
        True,
        True,
    )
    assert "name one with --config FILE" in ran.err
    assert made.run("validate", "--config", "models.yaml").code == 0
    ran = made.apply("--http-port", "1")
    assert (ran.code, "gone.yaml (port 1), which no longer exists" in ran.err) == (2, True)
    assert made.apply("--http-port", str(fake(made).port)).code == 0


def test_a_server_of_another_repository_or_process_is_none(made: Bench, tmp_path: Path) -> None:
    shutil.copytree(made.repository, tmp_path / "copy")
    ran = made.apply("--repository", "copy")
    assert (ran.code, "no server runs on copy on this machine" in ran.err) == (1, True)
    (state,) = running_servers(made.repository)
    write_state(dataclasses.replace(state, sockets="/of/a/container"))
    assert "runs in a container or as another user: run apply there" in made.apply().err


def test_two_applies_at_once_are_one_and_a_word(made: Bench) -> None:
    made.say(CHANGED)
    with writing.locked(made.repository):
        ran = made.apply()
    assert ran.code == 1
    assert f"another hf-triton (process {os.getpid()}) is writing to it" in ran.err
    assert made.apply("--wait").code == 0


@pytest.mark.parametrize(
    "place, error, code, told",
    [
        (
            (staging, "create"),
            OSError(28, "No space left on device", "a/2"),
            1,
            "model 'a' failed: a/2: No space left on device; version 1",
        ),
        (
            (model_update, "decide_group"),
            PermissionError(13, "Permission denied", "x"),
            1,
            "model 'a' failed: x: Permission denied",
        ),
        ((model_update, "decide_group"), ZeroDivisionError(), 3, "this is a bug in hf-triton"),
        (
            (FakeTriton, "load"),
            ConnectionError(),
            1,
            "the server stopped while it loaded a; version 1 is on disk again",
        ),
    ],
)
def test_whatever_ends_a_change_is_told_and_leaves_the_disk_as_it_was(
    made: Bench,
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[Any, str],
    error: Exception,
    code: int,
    told: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    made.say(CHANGED)
    with monkeypatch.context() as patch:
        patch.setattr(*place, fail)
        ran = made.apply()
    assert (ran.code, told in ran.err) == (code, True), ran
    assert not (made.repository / "a" / "2").exists()
    assert made.ready("a") == {1}
    made.say(BOTH)
    assert made.is_current()


def test_a_record_that_was_lost_is_made_anew_where_there_is_nothing_to_do(made: Bench) -> None:
    (made.repository / SERVED_FILE).unlink(missing_ok=True)
    assert made.apply().code == 0
    assert recorded(made) == ("a", "s")


def test_what_is_not_always_loaded_is_written_and_loaded_by_others(made: Bench) -> None:
    later = "- {name: later, streaming: true, load: on_demand}\n- {name: hand, load: manual}\n"
    ran = made.applied(BOTH + later)
    assert "later_stream: written, nothing to load" in ran.out
    assert not [event for event in fake(made).events if event.startswith("load")]
    assert recorded(made) == ("a", "hand", "later", "s")

    made.say(f"{BOTH}{later}- {{name: mine, load: on_demand}}\n")
    (made.repository / "mine").write_text("a file of the user's own")
    assert made.apply().code == 1
    assert recorded(made) == ("a", "hand", "later", "s")

    slower = later.replace("on_demand", f"on_demand, {SLOWER}")
    made.applied(BOTH + slower)
    assert made.ready("later") == set()
    assert made.is_current()

    for folder in ("later_stream", "later"):
        assert made.api.load(folder) is None
    made.applied(BOTH + later)
    assert made.ready("later_stream") == {2}, "what is loaded is changed as ever"
    made.applied(BOTH)
    assert made.ready("later") == set()
    made.applied(f"{BOTH}- {{name: hand}}\n")
    assert made.ready("hand") == {1}, "it is always loaded from now on"


def test_an_apply_ends_where_another_process_does_not_let_go_of_a_model(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_update, "BY_OTHERS_S", 0.2)
    changed = f"- {{name: a, {SLOWER}}}\n- {{name: s, streaming: true, {SLOWER}}}\n"
    for wanted in (changed, "- {name: a}\n"):
        made.say(wanted)
        with locked_model(made.repository / "s_stream"):
            ran = made.apply()
        assert ran.code == 1
        assert "model 's' failed: s_stream is still being loaded or changed by another" in ran.err
        assert "try again later" in ran.err
        assert made.apply().code == 0


def test_a_version_that_fails_leaves_the_one_before_and_the_others_go_on(made: Bench) -> None:
    made.say(f"- {{name: a, {FAILING}}}\n- {{name: s, streaming: true, {SLOWER}}}\n")
    ran = made.apply()
    assert ran.code == 1
    assert "model 'a' failed: RuntimeError: no weights; version 1 goes on serving" in ran.err
    assert (made.ready("a"), made.ready("s_stream")) == ({1}, {2})
    assert not (made.repository / "a" / "2").exists()
    diff = made.run("diff")
    assert diff.code == 1
    assert "update model_repository/a/1/model.json" in diff.out
    made.say(f"- {{name: a, {SLOWER}}}\n- {{name: s, streaming: true, {SLOWER}}}\n")
    assert made.apply().code == 0
    assert '"answer_s": 0.01' in made.options("a")
    assert made.is_current()


def test_streaming_turned_off_and_on_again(made: Bench) -> None:
    made.say("- {name: a}\n- {name: s}\n")
    assert made.apply().code == 0
    assert (made.ready("s"), made.ready("s_stream")) == ({2}, set())
    made.say("- {name: a}\n- {name: s, streaming: true}\n")
    assert made.apply().code == 0
    assert (made.ready("s"), made.ready("s_stream")) == ({3}, {1})
    assert made.is_current()


def test_files_that_only_the_disk_lacks_are_written_and_nothing_is_loaded(made: Bench) -> None:
    (made.repository / "a" / "1" / "model.py").unlink()
    ran = made.apply()
    assert (ran.code, made.is_current()) == (0, True)
    assert "a: written, nothing to load" in ran.out
    assert "load a" not in fake(made).events


def test_an_edit_of_a_version_that_was_begun_and_never_served_is_kept(made: Bench) -> None:
    made.say(CHANGED)
    plan = make_plan(Path("models.yaml"), made.repository).groups[0][0]
    version_folders.add_version(plan, 2, {1})
    edit(made, 1)
    made.applied(CHANGED)
    assert made.run("generate").code == 0
    assert model_at(made, max(made.ready("a"))).endswith(EDITED)
