"""apply on a fake server, which takes no time; one scenario on a real one too, from which the fake
must not differ. What callers notice there: test_apply_under_load.py, test_apply_ensemble.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from generator.repository import served_record
from tests.support.apply_bench import Bench, bench

SLOWER = "options: {answer_s: 0.01}"
FAILING = 'options: {fail: "no weights"}'


@pytest.fixture(params=["fake", "real"])
def made(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    with bench(request.param, tmp_path, monkeypatch) as found:
        yield found


def test_a_change_an_addition_and_a_removal_and_all_of_it_taken_back(made: Bench) -> None:
    assert made.apply().out.endswith("runs what is wanted: nothing to do\n")
    made.say(f"- {{name: s, streaming: true, {SLOWER}}}\n- {{name: new}}\n")
    ran = made.apply()
    assert (ran.code, made.is_current()) == (0, False)  # the folder of a is still there
    assert "1 changed, 1 added, 1 removed" in ran.out
    assert made.ready("a") == set()
    assert (made.ready("new"), made.ready("s"), made.ready("s_stream")) == ({1}, {1}, {2})
    record = served_record.read(made.repository)
    assert record is not None
    assert record.models == ("new", "s")

    back = made.apply("--rollback")
    assert back.code == 0
    assert "models.yaml still asks for the newer state" in back.err
    assert (made.ready("a"), made.ready("new"), made.ready("s_stream")) == ({1}, set(), {3})
    assert '"answer_s": 0.0' in made.options("s_stream")
    again = made.apply("--rollback")
    assert (again.code, again.out) == (1, "")
    assert "nothing to roll back" in again.err


@pytest.mark.parametrize("made", ["fake"], indirect=True)
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


@pytest.mark.parametrize("made", ["fake"], indirect=True)
def test_streaming_turned_off_and_on_again(made: Bench) -> None:
    made.say("- {name: a}\n- {name: s}\n")
    assert made.apply().code == 0
    assert (made.ready("s"), made.ready("s_stream")) == ({2}, set())
    assert made.apply("--rollback").code == 0
    assert (made.ready("s"), made.ready("s_stream")) == ({3}, {1})
    assert made.apply().code == 0
    made.say("- {name: a}\n- {name: s, streaming: true}\n")
    assert made.apply("--prune").code == 0
    assert (made.ready("s"), made.ready("s_stream")) == ({5}, {1})
    assert made.is_current()
