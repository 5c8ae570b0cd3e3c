"""Starts our Python processes without the working directory on their search path, so that a
``torch.py`` there is not imported. -P and PYTHONSAFEPATH need Python 3.11, and -I leaves out the
user's own packages. On Linux the kernel can end them with the one that started them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import MutableMapping
from pathlib import Path

# Processes that put their working directory first by themselves, as Triton's stubs, start here.
ROOT_FOLDER = "/"
# In these variables an empty entry stands for the working directory.
_SEARCH_PATHS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
_PATHS = (
    *("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH", "HF_TRITON_PYTHON_ENVS", "XDG_CACHE_HOME"),
    *("NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR"),
    *("REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"),
)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_RUN = (
    "import sys; sys.path[:] = filter(None, sys.path); del sys.argv[0]; "
    "from runpy import run_module; run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def run_module(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    return [python, "-c", _RUN, module, *arguments]


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """A ``preexec_fn``: the child gets signal ``number`` when the thread that started it ends."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def leave_out_working_directory(environment: MutableMapping[str, str] = os.environ) -> None:
    """Takes empty entries out of search paths, and makes folders absolute for child processes."""
    for name in _SEARCH_PATHS:
        entries = filter(None, environment.get(name, "").split(os.pathsep))
        if found := os.pathsep.join(str(Path(entry).absolute()) for entry in entries):
            environment[name] = found
        else:
            environment.pop(name, None)
    for name in _PATHS:
        path = environment.get(name)
        if path and not path.startswith("~"):  # those who read the variable expand it
            environment[name] = str(Path(path).absolute())
