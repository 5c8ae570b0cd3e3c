"""The code that all tasks share: ``model.json``, devices, weights, Triton's tensors, errors.
Imports nothing of the generator.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
from pathlib import Path

# A waiting thread's spins before it sleeps: enough for the code between two parallel loops of a
# step, and few where another process has the others' cores.
# libgomp's own 300,000 keep the core that the thread it waits for needs: beside one busy process a
# decode step took 20 times as long, with this 3 to 5 times. Read when torch loads libgomp:
# https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
# torch and oneDNN each keep compiled products by their number of rows: their own 1,024 take half a
# mebibyte each, and lie between buffers whose memory then can't be returned. Compiling one anew
# takes a millisecond; with 128 a decoder of 0.4 M weights was no slower. Read at the first product:
# https://github.com/intel/ideep/blob/main/include/ideep/lru_cache.hpp,
# https://uxlfoundation.github.io/oneDNN/dev_guide_primitive_cache.html
for _variable in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_variable, "128")

# The folder of the model version whose process this is: the command line names its model.py.
version_folder: Path | None = None
# Triton makes the memory through which prompts pass readable to every user of the machine; its
# name is the second argument of a model's process.
with contextlib.suppress(OSError, ValueError):
    _program, _model_file, _region, _ = Path("/proc/self/cmdline").read_text().split("\0", 3)
    if _program.endswith("triton_python_backend_stub"):
        version_folder = Path(_model_file).parent
        Path("/dev/shm", _region).chmod(0o600)  # noqa: S108

# Imported objects stay: collecting garbage among them again and again, as they grow, takes a tenth
# of an import. ``collect_normally`` ends that.
_THRESHOLDS = gc.get_threshold()
if version_folder is not None:
    gc.set_threshold(100_000)


def collect_normally() -> None:
    """Restores Python's own garbage collection, which leaves out what is imported so far."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


# Transformers imports torchao, if installed, for every model, and without a GPU it warns of kernels
# for one; bitsandbytes warns of every layer's input at every step.
for _name in ("bitsandbytes", "torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)

# The interpreter collects garbage several times at its end, among all that torch imported: without,
# a model's process ends 0.9 s of CPU time sooner.
atexit.register(gc.freeze)
