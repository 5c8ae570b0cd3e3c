"""What a container may use of its machine's cores, from files as the kernel writes them."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from hf_triton.runtime.devices import cpu_quota as module
from hf_triton.runtime.devices.cpu_quota import cpu_quota, num_cores

V2 = "30 23 0:26 {root} {at} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "33 31 0:29 {root} {at} rw shared:9 - cgroup cgroup rw,cpu,cpuacct"
OTHER = "34 31 0:30 / {at}/memory rw - cgroup cgroup rw,memory\n22 1 0:5 / / rw - ext4 /dev/vda rw"


def process(folder: Path, cgroup: str, mount: str, files: dict[str, str], root: str = "/") -> Path:
    """A process's folder in /proc, of the cgroup and with what is mounted; ``files`` are there."""
    at = folder / "sys fs" / "cgroup"
    for name, text in files.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(text)
    escaped = str(at).replace(" ", "\\040")
    lines = (OTHER, mount) if mount else (OTHER,)
    (folder / "cgroup").write_text(cgroup)
    (folder / "mountinfo").write_text("\n".join(lines).format(root=root, at=escaped) + "\n")
    return folder


@pytest.mark.parametrize(
    "cgroup, root, files, expected",
    [
        ("0::/\n", "/", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", "/", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", "/", {}, math.inf),
        ("0::/a/b\n", "/", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 0.5),
        ("0::/a/b\n", "/", {"a/b/cpu.max": "20000 10000", "a/cpu.max": "400000 100000"}, 2.0),
        ("0::/docker/1\n", "/docker/1", {"cpu.max": "100000 100000"}, 1.0),
        ("0::/docker/1/a\n", "/docker/1", {"a/cpu.max": "100000 100000"}, 1.0),
        ("0::/docker/1\n", "/", {"cpu.max": "300000 100000"}, 3.0),
        ("0::/../other\n", "/", {"cpu.max": "300000 100000"}, 3.0),
        ("0::/\n", "/", {"cpu.max": "nonsense"}, math.inf),
    ],
)
def test_quota_of_cgroups_of_version_2(
    cgroup: str, root: str, files: dict[str, str], expected: float, tmp_path: Path
) -> None:
    assert cpu_quota(process(tmp_path, cgroup, V2, files, root)) == expected


@pytest.mark.parametrize(
    "cgroup, root, quotas, expected",
    [
        ("4:memory:/m\n3:cpu,cpuacct:/\n0::/\n", "/", {"": "150000"}, 1.5),
        ("3:cpu,cpuacct:/\n", "/", {"": "-1"}, math.inf),
        ("3:cpu,cpuacct:/a/b\n", "/", {"": "-1", "a/": "50000", "a/b/": "-1"}, 0.5),
        ("3:cpu,cpuacct:/docker/1\n", "/docker/1", {"": "50000"}, 0.5),
        ("4:memory:/a\n", "/", {"": "50000"}, math.inf),
    ],
)
def test_quota_of_cgroups_of_version_1(
    cgroup: str, root: str, quotas: dict[str, str], expected: float, tmp_path: Path
) -> None:
    files = {f"{folder}cpu.cfs_quota_us": f"{quota}\n" for folder, quota in quotas.items()}
    files |= {f"{folder}cpu.cfs_period_us": "100000\n" for folder in quotas}
    assert cpu_quota(process(tmp_path, cgroup, V1, files, root)) == expected


def test_without_cgroups_or_files_to_read_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "missing") == math.inf
    assert cpu_quota(process(tmp_path, "0::/\n", "", {"cpu.max": "1 1"})) == math.inf


@pytest.mark.parametrize(
    "quota, expected", [(0.5, 1), (1.0, 1), (1.5, 2), (64.0, 8), (math.inf, 8)]
)
def test_a_part_of_a_core_counts_as_one(
    quota: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(module, "cpu_quota", lambda: quota)
    assert num_cores() == expected
