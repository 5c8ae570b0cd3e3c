"""The journal of a stream, by which another process goes on with it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hf_triton.ports.call_files import Stream
from hf_triton.runtime.errors import OverloadedError
from hf_triton.runtime.request.request_parameters import CALL, VARIABLE, Call, call_in, call_text
from hf_triton.runtime.request.stream_journal import StreamJournal, model_that_began

NAME = "0123456789abcdef" * 2
LINES = [[([1], -0.5), ([], 0.0)], [([2, 3], -1.5), ([7], -2.0)], [([], -1.5), ([8], -3.0)]]


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/left_")
    return Stream(f"{tmp_path}/left_", NAME)


def call(num_responses: int = 0) -> Call:
    found = call_in(json.dumps({CALL: call_text(NAME, num_responses, 1.25, NAME)}))
    assert found
    return found


def begun(seeds: list[int | None] | None = None) -> StreamJournal:
    journal = StreamJournal.open(call(), "m", "weights", seeds or [5])
    assert journal
    for line in LINES:
        journal.add(line)
    journal.close()
    return journal


@pytest.mark.usefixtures("stream")
def test_a_call_says_what_its_caller_has() -> None:
    again = call(12)
    assert (again.num_responses, again.waited_ms) == (12, 1250)
    assert again.journal == f"{again.left_file}.told"
    assert len(call_text(NAME, 12, 1.25, NAME)) == len(call_text(NAME, 0, 0.0, NAME))


@pytest.mark.usefixtures("stream")
@pytest.mark.parametrize("num_responses", [1, 2, 3])
def test_another_process_goes_on_behind_what_the_caller_has(num_responses: int) -> None:
    begun()
    for _ in range(2):  # it dies too
        again = StreamJournal.open(call(num_responses), "m", "weights", [99])
        assert again
        assert again.seeds == [5]
        assert again.told == json.loads(json.dumps(LINES[:num_responses]))
        again.add([([4], 0.0), ([5], 0.0)])
        again.close()


@pytest.mark.usefixtures("stream")
def test_what_nobody_has_begins_anew() -> None:
    begun()
    again = StreamJournal.open(call(), "m", "weights", [6])
    assert again
    assert (again.seeds, again.told) == ([6], [])


@pytest.mark.usefixtures("stream")
@pytest.mark.parametrize("model,source", [("other", "weights"), ("m", "others")])
def test_other_weights_do_not_go_on(model: str, source: str) -> None:
    begun()
    with pytest.raises(OverloadedError, match="can't go on"):
        StreamJournal.open(call(1), model, source, [5])


def test_without_the_journal_nothing_goes_on(stream: Stream) -> None:
    begun()
    with pytest.raises(OverloadedError, match="can't go on"):
        StreamJournal.open(call(4), "m", "weights", [5])
    stream.close()
    assert StreamJournal.open(call(), "m", "weights", [5]) is None
    with pytest.raises(OverloadedError, match="can't go on"):
        StreamJournal.open(call(1), "m", "weights", [5])


@pytest.mark.usefixtures("stream")
def test_a_journal_with_a_gap_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = StreamJournal.open(call(), "m", "weights", [5])
    assert journal
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: len(data) - 1)
        journal.add(LINES[0])
    journal.add(LINES[1])
    with pytest.raises(OverloadedError, match="can't go on"):
        StreamJournal.open(call(1), "m", "weights", [5])


@pytest.mark.threat("stream-journals")
def test_the_port_sees_who_answers(stream: Stream) -> None:
    assert not stream.goes_on
    assert model_that_began(call(1)) == ""
    begun()
    assert stream.goes_on
    assert (model_that_began(call(1)), model_that_began(call())) == ("m", "")
    assert oct(Path(call().journal).stat().st_mode)[-3:] == "600"
