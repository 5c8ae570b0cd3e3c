"""The Python that processes of a model's own are started with."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def python_program() -> str:
    """The interpreter of the environment that this process runs in; within Triton's stub
    ``sys.executable`` may be something else.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = [Path(sys.prefix, "bin"), Path(sysconfig.get_path("scripts"))]
    for folder in folders:
        for name in (version, "python3", "python"):
            if (folder / name).is_file():
                return str(folder / name)
    return sys.executable
