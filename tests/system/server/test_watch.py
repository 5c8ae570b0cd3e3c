"""serve --watch as a process of its own: every save is applied, whatever is wrong with it."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.support.served import Served, serve
from tests.support.triton import eventually

WAITS = "it waits for ever for a process of 'a' that has died"
APPLIED = "b: is no longer in models.yaml"  # the last but one line of an apply
HOOKS = "def preprocess(request):\n    return request\n"


def ready(served: Served, *models: str) -> bool:
    return all(served.generate(model, "x").status == 200 for model in models)


@pytest.mark.threat("yaml-file-kinds")
def test_every_save_is_applied_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    config = tmp_path / "models.yaml"
    with serve(tmp_path, "- {name: a}\n", "--watch") as served:
        served.wait_for("serving 1 of 1 model")
        text = config.read_text()
        config.write_text(text + "  - {name: a}\n")
        served.wait_for("already")
        served.wait_for("nothing was changed; still watching")
        config.unlink()
        served.wait_for("models.yaml is gone")
        os.mkfifo(config)
        served.wait_for("it is a pipe, expected a regular file")
        assert ready(served, "a")
        config.unlink()
        config.symlink_to("/dev/zero")
        served.wait_for("it is a device, expected a regular file")
        assert ready(served, "a")

        scratch = tmp_path / "models.yaml.new"
        scratch.write_text(text + "  - {name: b, hooks: hooks.py}\n")
        (tmp_path / "hooks.py").write_text(HOOKS)
        scratch.replace(config)  # as editors do
        served.wait_for("b: ready after")
        assert ready(served, "a", "b")
        served.wait_for("1 added, 1 unchanged")
        (tmp_path / "hooks.py").write_text(HOOKS + "# changed\n")
        served.wait_for("b: b version 2 ready after")

        config.write_text(text.replace("{name: a}", "{name: a, options: {fail: no weights}}"))
        served.wait_for("model 'a' failed: RuntimeError: no weights; version 1 goes on serving")
        served.wait_for("not all of it is served")
        assert ready(served, "a")
        assert eventually(lambda: served.generate("b", "x").status != 200)

        # Triton waits for ever for a process that dies in its first moments; of one that dies later
        # it says so.
        for attempt in range(1, 9):
            changed = f"{{name: a, options: {{answer_s: 0.0{attempt}}}}}"
            num_applied = served.err.count(APPLIED)
            with served.killed_at_birth():
                config.write_text(text.replace("{name: a}", changed))
            assert ready(served, "a"), "the version before answers"
            assert eventually(partial(is_told, served, num_applied), 120)
            if WAITS in served.err:
                break
        served.wait_for(WAITS)
        served.wait_for("the server stopped while it loaded a; version")
        served.wait_for("a is ready again")
        assert ready(served, "a")
        served.signal(signal.SIGTERM)
        assert served.exit_code() == 0
        assert served.leaves_nothing()


def is_told(served: Served, num_applied: int) -> bool:
    """Whether Triton waits for a dead process, or the apply has ended."""
    return WAITS in served.err or served.err.count(APPLIED) > num_applied
