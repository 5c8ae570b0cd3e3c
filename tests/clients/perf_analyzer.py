"""Where perf_analyzer and its libraries are.

The binary comes with tritonclient's wheel; two libraries that it wants are in nvidia-pytriton's,
under names with a hash in them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import pytriton

_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12.*"}


def environment_of(folder: Path) -> dict[str, str]:
    """Environment variables with which ``perf_analyzer`` is found and runs; links go to ``folder``.

    Skips the test where the wheels of this platform hold no perf_analyzer.
    """
    binary = Path(sys.executable).with_name("perf_analyzer")
    wheel = Path(str(pytriton.__file__)).parents[1] / "nvidia_pytriton.libs"
    found = {name: next(wheel.glob(pattern), None) for name, pattern in _LIBRARIES.items()}
    if not binary.is_file():
        pytest.skip("tritonclient's wheel has no perf_analyzer here")
    _link(folder / "bin" / "perf_analyzer", binary)
    for name, library in found.items():
        if library is not None:
            _link(folder / "lib" / name, library)
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(folder / "lib"),
    }


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)
