"""Starts our Python processes without the working directory on their search path, so that a
``torch.py`` there is not imported. -P and PYTHONSAFEPATH need Python 3.11, and -I leaves out the
user's own packages.
"""

from __future__ import annotations

import os
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
_RUN = (
    "import sys; sys.path[:] = filter(None, sys.path); del sys.argv[0]; "
    "from runpy import run_module; run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def run_module(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    return [python, "-c", _RUN, module, *arguments]


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
