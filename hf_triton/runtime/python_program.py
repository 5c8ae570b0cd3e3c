"""The Python that processes of a model's own are started with."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def python_program() -> str:
    """The interpreter of this process's environment; in Triton's stub ``sys.executable`` may be
    another.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = [Path(sys.prefix, "bin"), Path(sysconfig.get_path("scripts"))]
    for folder in folders:
        for name in (version, "python3", "python"):
            if (folder / name).is_file():
                return str(folder / name)
    return sys.executable
