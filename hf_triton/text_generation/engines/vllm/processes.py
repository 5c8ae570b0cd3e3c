"""Starts vLLM's processes: environment variables, and a signal that ends them with this process,
which they ask Linux for (prctl(2), PR_SET_PDEATHSIG). Otherwise they outlive a killed parent.
"""

from __future__ import annotations

import contextlib
import locale
import multiprocessing.spawn
import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hf_triton.runtime.own_environment import python_program

VARIABLES = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # why a load failed; never a request
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would copy Triton's stub with its threads
    "HF_HUB_OFFLINE": "1",  # the files are in the model's cache
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUTF8": "1",
}
# The parent may have ended before prctl is called: then the process exits.
_DIE_WITH_PARENT = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def set_variables(*, gpu_index: int | None, num_threads: int, num_ranks: int, is_cpu: bool) -> None:
    """Sets variables that the environment lacks; called before vllm is imported."""
    with contextlib.suppress(locale.Error):
        # Triton's stub is left in the C locale, where torch can't read templates of its own.
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    variables = dict(VARIABLES)
    if is_cpu:
        cores = sorted(os.sched_getaffinity(0))
        variables["VLLM_CPU_OMP_THREADS_BIND"] = binding(cores, num_threads, num_ranks)
        variables["OMP_NUM_THREADS"] = str(num_threads)
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    if gpu_index is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_gpu(gpu_index)


def binding(cores: Sequence[int], num_threads: int, num_ranks: int) -> str:
    """The cores that each rank's threads are bound to: all, of which vLLM's own choice leaves one
    idle, or none where other instances share them.
    """
    share = len(cores) // num_ranks
    if num_threads < len(cores) or not share:
        return "nobind"
    parts = [cores[rank * share : (rank + 1) * share] for rank in range(num_ranks)]
    return "|".join(",".join(map(str, part)) for part in parts)


def visible_gpu(index: int) -> str:
    """The name of the ``index``-th visible GPU, for a process that may see it alone."""
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return names[index] if index < len(names) else str(index)


@contextmanager
def children_die_with_parent() -> Iterator[None]:
    """Kills processes that multiprocessing spawns here when the spawning thread ends, however it
    does.
    """
    before = multiprocessing.spawn.get_executable()
    with tempfile.TemporaryDirectory(prefix="hf-triton-vllm-") as folder:
        program, quoted = Path(folder, "python"), shlex.quote(python_program())
        dying = f"{quoted} -I -c {shlex.quote(_DIE_WITH_PARENT)} {os.getpid()}"
        program.write_text(f'#!/bin/sh\nexec {dying} {quoted} "$@"\n', encoding="utf-8")
        program.chmod(0o700)
        multiprocessing.spawn.set_executable(str(program))
        try:
            yield
        finally:
            multiprocessing.spawn.set_executable(before)
