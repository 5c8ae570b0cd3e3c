"""apply where memory holds no second copy of a model, on a fake server. On a real one callers ask
meanwhile: test_apply_under_load.py, test_apply_ensemble.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apply_bench import Bench, bench
from tests.unit.generator.test_apply_memory import published

SLOW = "options: {load_s: 0.4}"
NO_ROOM = published("a", "cuda:0", 72, 7) + published("s", "cuda:0", 72, 7)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with bench("fake", tmp_path, monkeypatch) as found:
        assert found.fake is not None
        found.fake.metrics = NO_ROOM
        yield found


def files(made: Bench) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in made.repository.rglob("*") if path.is_file()}


def test_without_room_nothing_is_touched_and_the_numbers_are_told(made: Bench) -> None:
    before = files(made)
    made.say(f"- {{name: a, {SLOW}}}\n- {{name: s, streaming: true, {SLOW}}}\n- {{name: new}}\n")
    dry = made.apply("--dry-run")
    assert dry.code == 1
    assert "change     a: version 1 -> 2" in dry.out
    told = "a second copy needs 72.0 GiB on cuda:0, and 7.0 GiB are free"
    assert f"no room    a: {told}" in dry.out
    assert f"no room    s: {told}" in dry.out
    ran = made.apply()
    assert ran.code == 1
    assert ran.out == dry.out
    assert "a, s: there is no room for a second copy beside the one that answers" in ran.err
    assert "--allow-gap" in ran.err
    assert files(made) == before
    assert (made.ready("a"), made.ready("s_stream"), made.ready("new")) == ({1}, {1}, set())


def test_with_a_gap_the_old_copy_goes_first_and_comes_back_with_a_rollback(made: Bench) -> None:
    made.say(f"- {{name: a, {SLOW}}}\n- {{name: s, streaming: true, {SLOW}}}\n")
    ran = made.apply("--allow-gap")
    assert ran.code == 0, ran
    assert (made.ready("a"), made.ready("s_stream"), made.ready("s")) == ({2}, {2}, {1})
    assert "a: unloaded; nobody answers until it is loaded again" in ran.out
    assert "s: s_stream version 2 ready, after " in ran.out
    assert made.fake is not None
    events = [event for event in made.fake.events if "probe" not in event]
    assert events == ["unload a", "load a", "unload s_stream", "load s_stream"]  # one by one
    assert made.is_current()
    back = made.apply("--rollback")  # the copy of version 2 publishes nothing here: as ever
    assert back.code == 0
    assert (made.ready("a"), made.ready("s_stream")) == ({3}, {3})


def test_where_the_old_one_does_not_come_back_either_that_is_told(made: Bench) -> None:
    config = made.repository / "a" / "1" / "model.json"
    config.write_text(config.read_text().replace('"fail": null', '"fail": "gone too"'))
    made.say('- {name: a, options: {fail: "no weights"}}\n- {name: s, streaming: true}\n')
    ran = made.apply("--allow-gap", "--force")
    assert ran.code == 1
    assert "no weights; version 1 is on disk again, but could not be loaded: a: " in ran.err
    assert "gone too" in ran.err
