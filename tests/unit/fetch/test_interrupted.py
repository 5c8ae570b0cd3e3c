"""A fetch that is cut off, stopped or killed goes on where it was and ends with the right bytes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import pytest

from tests.support.fake_hub import FakeHub
from tests.support.triton import ROOT, eventually
from tests.unit.fetch.workplace import Workplace

WEIGHTS = random.Random(7).randbytes(4_000_000)
# The command line, and proof that it needs no torch.
FETCH = """
import sys
from hf_triton.cli import main as cli
code = cli.main(["fetch", *sys.argv[1:]])
assert not {"torch", "transformers"} & set(sys.modules)
raise SystemExit(code)
"""
BIG = {"model.safetensors": WEIGHTS}


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
def test_cut_connections_cost_no_byte_twice(work: Workplace, hub: FakeHub, resets: bool) -> None:
    hub.repositories["org/tiny"].files = BIG
    hub.cuts = [random.Random(3).randrange(1, 400_000) for _ in range(10)]
    hub.resets = resets
    work.fetch()
    assert work.files() == BIG
    assert hub.cuts == []
    assert len(hub.ranges) == 10
    # Bytes that a reset destroys on their way were sent, but never came.
    assert resets or hub.sent["model.safetensors"] == len(WEIGHTS)


def test_a_hub_without_ranges_is_asked_for_the_whole_file_again(
    work: Workplace, hub: FakeHub
) -> None:
    hub.repositories["org/tiny"].files = BIG
    hub.takes_ranges = False
    hub.cuts = [1_000_000]
    work.fetch()
    assert work.files() == BIG


def test_a_connection_that_never_gets_on_is_given_up_and_taken_up_later(
    work: Workplace, hub: FakeHub
) -> None:
    hub.repositories["org/tiny"].files = BIG
    hub.cuts = [1_000_000, *[0] * 10]
    assert "can't be reached (RemoteProtocolError: " in work.refused("fetch")
    assert not work.snapshots()
    hub.cuts.clear()
    hub.count_anew()
    ran = work.fetch()
    assert "1.0 MB here, 3.0 MB to fetch" in ran.out
    assert hub.sent["model.safetensors"] == 3_000_000


@pytest.mark.parametrize("num_bytes", [1_000_000, len(WEIGHTS) + 1], ids=["wrong", "too long"])
def test_a_part_that_is_wrong_is_dropped_and_fetched_whole(
    work: Workplace, hub: FakeHub, num_bytes: int
) -> None:
    hub.repositories["org/tiny"].files = BIG
    hub.cuts = [1_000_000, *[0] * 10]
    work.refused("fetch")
    hub.cuts.clear()
    (part,) = work.cache().rglob("*.incomplete")
    assert part.stat().st_size == 1_000_000
    part.write_bytes(bytes(num_bytes))
    work.fetch()
    assert work.files() == BIG


def start(work: Workplace, hub: FakeHub, *arguments: str) -> subprocess.Popen[str]:
    """A fetch in a process of its own, with the Hub's address in its environment."""
    known = ("PATH", "HOME", "LANG", "PYTHONPATH")
    environment = {name: os.environ[name] for name in known if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, *arguments],
        cwd=work.folder,
        env={
            **environment,
            "HF_ENDPOINT": hub.url,
            "HF_HUB_DOWNLOAD_TIMEOUT": "60",
            "PYTHONPATH": str(ROOT),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_and_get_a_part(work: Workplace, hub: FakeHub) -> subprocess.Popen[str]:
    """A fetch that has a part of the weights; the rest would take most of a minute."""
    hub.chunk, hub.seconds_between_chunks = 4_000, 0.05
    process = start(work, hub)
    parts = work.cache().rglob
    assert eventually(lambda: any(part.stat().st_size for part in parts("*.incomplete")))
    return process


def test_ctrl_c_ends_at_once_and_the_next_run_goes_on(work: Workplace, hub: FakeHub) -> None:
    hub.repositories["org/tiny"].files = BIG
    process = start_and_get_a_part(work, hub)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith(
        "hf-triton: received files are kept; run the same command to continue\n"
        "hf-triton: interrupted\n"
    )
    assert not work.snapshots()
    assert_goes_on(work, hub)


def assert_goes_on(work: Workplace, hub: FakeHub) -> None:
    (part,) = work.cache().rglob("*.incomplete")
    kept = part.stat().st_size
    assert 0 < kept < len(WEIGHTS)
    assert WEIGHTS.startswith(part.read_bytes())
    hub.seconds_between_chunks = 0.0
    hub.count_anew()
    work.fetch()
    assert hub.sent["model.safetensors"] == len(WEIGHTS) - kept
    assert work.files() == BIG
