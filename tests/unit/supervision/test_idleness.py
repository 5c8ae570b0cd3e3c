"""Whether a server computes."""

from __future__ import annotations

from hf_triton.serving.supervision.lifecycle import IdleTime


def test_it_is_idle_since_no_process_used_a_tenth_of_a_core() -> None:
    now_s = 0.0
    used = {1: 5.0, 2: 0.0}
    idleness = IdleTime(7, lambda group: dict(used), lambda: now_s)
    now_s = 4.0
    used[1] = 5.3
    assert idleness.seconds() == 4.0
    now_s = 8.0
    used[2] = 3.0
    assert idleness.seconds() == 0.0
    now_s = 10.0
    del used[2]
    used[3] = 0.1
    assert idleness.seconds() == 2.0
