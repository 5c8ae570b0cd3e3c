"""The figures of a measured apply, without a server."""

from __future__ import annotations

from perf.reload.__main__ import Changed, Phase, Report, phase, to_markdown
from perf.reload.load import Asked, embedding_of_generate, text_of_events, text_of_generate


def test_a_phase_has_the_requests_that_ended_in_it() -> None:
    asked = [Asked(0.0, 1.0, ""), Asked(0.5, 2.5, ""), Asked(9.0, 9.5, ""), Asked(3.0, 20.0, "")]
    assert phase(asked, [(0.0, 2.0), (9.0, 11.0)]) == Phase(2, 0.5, 1.0, 1.0)
    assert phase([], [(0.0, 2.0)]) == Phase(0, 0.0, 0.0, 0.0)


def test_of_each_answer_what_must_stay_the_same_is_read() -> None:
    assert text_of_generate('{"text_output": "a b", "model_version": "2"}') == "a b"
    events = 'data: {"text_output": "a"}\n\ndata: {"text_output": " b"}\n\n'
    assert text_of_events(events) == "a b"
    assert embedding_of_generate('{"embedding": [0.12345, 1]}') == [0.123, 1]


def test_the_table_counts_what_was_lost() -> None:
    calm = Phase(100, 10.0, 0.1, 0.2)
    changed = Changed("demo", 32, [9.0, 11.0], 300, ["HTTP status 503"], calm, calm, calm)
    report = Report("now", "perf.reload", "abc", {}, {}, "demo", {}, [changed])
    row = to_markdown(report).splitlines()[2]
    assert row.startswith("| demo | 32 | 2 | 9.0 to 11.0 | 300 | 1 | 10.0 | 0.10 | 0.20 |")
