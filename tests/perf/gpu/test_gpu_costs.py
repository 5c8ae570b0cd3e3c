"""The model of costs: what the real scheduler's steps come to under clients, and what fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perf.gpu.costs.assumed import A10, H100, LLAMA_2_7B, PAGES, SLOTS, Design
from perf.gpu.costs.estimate import Estimate, estimate, seconds
from perf.gpu.costs.simulated import Work, num_fitting, room, steps


def found(design: Design, clients: int) -> Estimate:
    return estimate(LLAMA_2_7B, H100, design, steps(LLAMA_2_7B, H100, design, clients, 200))


def test_pages_hold_ten_times_the_sequences_of_slots() -> None:
    fitting = {
        (design.name, card.name): num_fitting(room(LLAMA_2_7B, card, design))
        for design in (SLOTS, PAGES)
        for card in (H100, A10)
    }
    assert fitting[SLOTS.name, H100.name] == 29
    assert fitting[SLOTS.name, A10.name] == 4
    assert fitting[PAGES.name, H100.name] >= 290
    assert fitting[PAGES.name, A10.name] >= 30


@pytest.mark.parametrize("clients", [8, 64])
def test_pages_read_the_keys_that_are_needed_and_little_more(clients: int) -> None:
    pages, slots = found(PAGES, clients), found(SLOTS, clients)
    assert 1.0 <= pages.read / pages.needed < 1.1 < slots.read / slots.needed
    assert pages.num_tokens / pages.num_steps > 0.9 * clients
    assert pages.plans_s == 0


def test_a_step_takes_the_longer_of_device_and_host_where_the_host_works_ahead() -> None:
    work = Work(1, 1, 0, read=0, needed=0, is_replayed=True)
    slow = replace(PAGES, host_s=1.0)
    assert seconds(work, LLAMA_2_7B, H100, slow) == pytest.approx(1.0, abs=0.01)
    device_s = seconds(work, LLAMA_2_7B, H100, replace(PAGES, host_s=0.0))
    assert device_s > LLAMA_2_7B.read_bytes / H100.bytes_per_s
    waits = replace(slow, is_one_ahead=False)
    assert seconds(work, LLAMA_2_7B, H100, waits) == pytest.approx(1.0 + device_s, abs=1e-5)


def test_a_step_without_a_graph_takes_the_hosts_time_to_launch_it() -> None:
    work = Work(1, 1, 1, read=0, needed=0, is_replayed=False)
    eager, replayed = (
        seconds(one, LLAMA_2_7B, H100, SLOTS) for one in (work, replace(work, is_replayed=True))
    )
    assert eager == pytest.approx(32 * 41 * SLOTS.launch_s, rel=0.01)
    assert replayed < eager
