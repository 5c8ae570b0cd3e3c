"""The cores that the process may use, by its affinity and the quotas of its cgroups. A container
sees all cores of its machine but may have a quota for every period of 100 ms; its threads wait when
it is used up (https://docs.kernel.org/scheduler/sched-bwc.html).
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

# Of cgroups of version 2, and of version 1's controller for processor time.
_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu"))


def num_cores() -> int:
    """The number of cores the process may compute on at once, rounded up; at least 1."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, math.ceil(min(cpu_quota(), cores)))


def cpu_quota(roots: tuple[Path, ...] = _ROOTS, cgroups: Path = Path("/proc/self/cgroup")) -> float:
    """Seconds of processor time that the process may use in a second, by the quotas of its cgroup
    and of those above; infinite without any. ``cgroups`` is as cgroups(7) has it.

    A container often sees its own cgroup alone, at the root, whatever its path is.
    """
    paths = [""]
    with suppress(OSError, ValueError):
        for line in cgroups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                paths.append(path.strip("/"))
    folders = {above for root in roots for path in paths for above in _up_to(root, root / path)}
    return min(map(_quota_of, folders), default=math.inf)


def _up_to(root: Path, folder: Path) -> list[Path]:
    return [above for above in (folder, *folder.parents) if above.is_relative_to(root)]


def _quota_of(folder: Path) -> float:
    """The quota of one cgroup; infinite where it states none."""
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota = (folder / "cpu.cfs_quota_us").read_text().strip()
        period = (folder / "cpu.cfs_period_us").read_text().strip()
        return math.inf if quota == "-1" else int(quota) / int(period)
    return math.inf
