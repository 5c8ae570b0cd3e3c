"""What can be compared, and whether it is installed, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from perf.baselines.packages import environment_of
from perf.baselines.targets import TARGETS, Target


def listing(environments: Path) -> str:
    """A line for each target."""
    lines = [
        (target.name, ",".join(target.dtypes), *_about(target, environments)) for target in TARGETS
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(2)]
    return "\n".join(
        f"{name:{widths[0]}}  {dtypes:{widths[1]}}  {what}\n{'':{sum(widths) + 4}}{there}"
        for name, dtypes, what, there in lines
    )


def _about(target: Target, environments: Path) -> Iterator[str]:
    yield target.what
    if target.environment is None:
        yield "runs in the environment that this runs in"
        return
    environment = environment_of(target.environment, environments)
    if environment.is_there:
        yield f"installed in {environment.folder}"
    else:
        gib = environment.disk_gib
        yield f"to be installed into {environment.folder} on first use ({gib:.1f} GiB)"
