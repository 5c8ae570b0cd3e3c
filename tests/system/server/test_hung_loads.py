"""Loads that never end on a real server: Triton waits for ever for a process that dies in its first
moments.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.support.served import Served, serve
from tests.support.triton import eventually


def kill_first(served: Served, model: str, num_others: int = 0, version: int = 1) -> None:
    """Kills a new process of a model as soon as it is there."""
    before = served.stub_pids(model, version)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        new = [pid for pid in served.stub_pids(model, version) if pid not in before]
        if len(new) > num_others:
            os.kill(new[-1], signal.SIGKILL)
            return
    raise AssertionError(f"no process of {model} came:\n{served.err}")


def is_answered(served: Served, model: str) -> bool:
    return served.generate(model, "x").status == 200


def test_an_apply_does_not_wait_for_a_process_that_died_at_its_start(tmp_path: Path) -> None:
    with serve(tmp_path, "- {name: a}\n", "--watch") as served:
        served.wait_for("serving 1 of 1 model")
        config = tmp_path / "models.yaml"
        config.write_text(
            config.read_text().replace("name: a", "name: a, options: {answer_s: 0.01}")
        )
        kill_first(served, "a", version=2)
        assert served.generate("a", "x").status == 200, "the version before answers"
        served.wait_for("it waits for ever for a process of 'a' that has died")
        served.wait_for("the server went away while it loaded a; version 1 is on disk again")
        served.wait_for("a is ready again")
        assert served.generate("a", "x").status == 200


def test_a_load_that_lacks_one_of_its_processes_is_found(tmp_path: Path) -> None:
    models = "- {name: a, instance_group: [{count: 2, kind: KIND_CPU}], options: {load_s: 3}}\n"
    with serve(tmp_path, models) as served:
        kill_first(served, "a", num_others=1)
        served.wait_for("it waits for ever for a process of 'a' that has died")


def test_a_load_that_waits_for_others_is_not_hung(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    go_on.touch()
    slow = "".join(
        f"- {{name: slow{number}, options: {{load_until: {go_on}}}}}\n" for number in range(4)
    )
    with serve(tmp_path, f"- {{name: a}}\n{slow}", "--watch") as served:
        served.wait_for("serving 5 of 5 models")
        go_on.unlink()
        for number in range(4):
            os.kill(served.stub_pid(f"slow{number}"), signal.SIGKILL)
        assert eventually(lambda: served.err.count("it is loaded again") == 4, 60)
        assert eventually(lambda: all(served.stub_pids(f"slow{number}") for number in range(4)), 60)
        os.kill(served.stub_pid("a"), signal.SIGKILL)
        time.sleep(25)
        assert "waits for ever" not in served.err, served.err
        go_on.touch()
        served.wait_for("model 'a' is back")

        # A stop while a model is loaded again is quick and graceful.
        names = [f"slow{number}" for number in range(4)]
        assert eventually(lambda: all(is_answered(served, name) for name in names), 120)
        go_on.unlink()
        before = served.stub_pid("slow0")
        os.kill(before, signal.SIGKILL)
        assert eventually(lambda: served.stub_pids("slow0") not in ([], [before]), 120)
        served.signal(signal.SIGTERM)
        assert served.exit_code() == 0
        assert served.leaves_nothing()
