"""A container's share of its machine's cores, from files as the kernel writes them."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from hf_triton.runtime.devices import device
from hf_triton.runtime.devices.device import cpu_quota, num_cores


@pytest.mark.parametrize(
    "cgroups, files, expected",
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", {}, math.inf),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 0.5),
        ("0::/a/b\n", {"a/b/cpu.max": "20000 10000", "a/cpu.max": "400000 100000"}, 2.0),
        ("0::/docker/1\n", {"cpu.max": "100000 100000"}, 1.0),  # its own is the root
        ("0::/../other\n", {"cpu.max": "300000 100000"}, 3.0),
        ("0::/\n", {"cpu.max": "nonsense"}, math.inf),
        ("", {"cpu.max": "150000 100000\n"}, 1.5),
        ("4:memory:/m\n0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
    ],
)
def test_the_least_quota_of_a_cgroup_and_of_those_above_counts(
    cgroups: str, files: dict[str, str], expected: float, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    (tmp_path / "cgroup").write_text(cgroups)
    assert cpu_quota(tmp_path / "root", tmp_path / "cgroup") == expected


def test_without_cgroups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "missing", tmp_path / "cgroup") == math.inf


@pytest.mark.parametrize(
    "quota, expected", [(0.5, 1), (1.0, 1), (1.5, 2), (64.0, 8), (math.inf, 8)]
)
def test_a_part_of_a_core_counts_as_one(
    quota: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(device, "cpu_quota", lambda: quota)
    assert num_cores() == expected
