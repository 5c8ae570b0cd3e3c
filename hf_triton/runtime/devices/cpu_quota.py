"""The cores that the process may use, by its affinity and the quotas of its cgroups. A container
sees all cores of its machine but may have a quota for every period of 100 ms; its threads wait when
it is used up (https://docs.kernel.org/scheduler/sched-bwc.html).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_PROC = Path("/proc/self")


def num_cores() -> int:
    """The number of cores the process may compute on at once, rounded up; at least 1."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, math.ceil(min(cpu_quota(), cores)))


def cpu_quota(proc: Path = _PROC) -> float:
    """Seconds of processor time that the process may use in a second, by the quotas of its cgroup
    and of those above; infinite without any. ``proc`` is the process's folder in /proc.
    """
    quotas = [math.inf]
    with suppress(OSError, ValueError):
        for folder in _cgroup_folders(proc):
            with suppress(OSError, ValueError):
                quotas.append(_quota_of(folder))
    return min(quotas)


def _cgroup_folders(proc: Path) -> Iterator[Path]:
    """The folders of the process's cgroups for processor time, each with those above it.

    A container may see its own cgroup alone, as the root of what is mounted: its path is then
    either the namespace's root or begins with the root of the mount (cgroups(7), proc(5)).
    """
    paths = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    for line in (proc / "mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        kind, *_, options = source.split(" ")
        controller = {"cgroup2": "", "cgroup": "cpu"}.get(kind)
        if controller not in paths or (controller and controller not in options.split(",")):
            continue
        root, mounted_at = (part.replace("\\040", " ") for part in mount.split(" ")[3:5])
        top = Path(mounted_at)
        below = _below(paths[controller], root)
        yield from (top / folder for folder in (below, *below.parents))


def _below(path: str, root: str) -> PurePosixPath:
    """A cgroup's path relative to a mount of ``root``; nothing for one outside of it."""
    with suppress(ValueError):
        below = PurePosixPath(path).relative_to(root)
        if ".." not in below.parts:
            return below
    return PurePosixPath()


def _quota_of(folder: Path) -> float:
    """The quota of one cgroup. Raises OSError or ValueError where it states none."""
    both = folder / "cpu.max"
    if both.exists():
        quota, period = both.read_text().split()
    else:
        quota = (folder / "cpu.cfs_quota_us").read_text().strip()
        period = (folder / "cpu.cfs_period_us").read_text().strip()
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)
