"""Kernels that were compiled are kept for all processes of a user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.triton import ROOT

COMPILE = """
import sys
sys.path[:0] = [".", "tests/stub"]
import torch
from hf_triton.runtime.kernels.compiled_loops import load_kernel
load_kernel("silu_mul", torch.float32)
"""


def test_a_kernel_is_compiled_once_for_all_processes_of_a_user(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", COMPILE], cwd=ROOT, env=env, check=True)
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())
    before = kept.stat().st_mtime_ns
    again = f"{COMPILE}assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", again], cwd=ROOT, env=env, check=True)
    assert kept.stat().st_mtime_ns == before
