"""Loads the kernels so that they are compiled once on a machine, not once for every model.

Numba caches compiled code beside the source files. Every model has its own copy of those, in a
folder that may be read-only. So they are copied once more, to a folder of this user's that is named
by their hash, and all models share it. Cached code is executed without a check, so only a folder
that nobody else can write to is used.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from hf_runtime import log
from hf_runtime.errors import reason
from hf_runtime.private_folders import private_folders

from .thread_team import Kernel

KERNELS = "kernels.py"
# Which import the first.
STATE_KERNELS, EXPERT_KERNELS = "state_kernels.py", "expert_kernels.py"
TEXT_KERNELS = "text_kernels.py"
TILE_KERNELS, _TILE_OPERATIONS = "tile_kernels.py", "tile_operations.py"
_SOURCES = (
    *(KERNELS, STATE_KERNELS, EXPERT_KERNELS, TEXT_KERNELS),
    *(TILE_KERNELS, _TILE_OPERATIONS),
)


@cache
def load_kernel(name: str, dtype: str, source: str = KERNELS) -> Kernel:
    """A kernel of a source file; compiling it takes seconds, once on a machine. Raises ImportError
    without Numba.
    """
    package, is_kept = _load_package()
    module = importlib.import_module(f"{package}.{Path(source).stem}")
    try:
        function = _compiled(module.ENTRIES[name, dtype], is_kept)
    except Exception as error:
        if not is_kept:
            raise
        # Whatever is wrong with the cache on disk: damaged, full, written by another Numba.
        function = _compiled(module.ENTRIES[name, dtype], is_kept=False)
        _say_not_kept(f"{type(error).__name__}: {reason(error)}")
    return Kernel(function.address, function)


def _compiled(entry: Any, is_kept: bool) -> Any:
    """A function of a source file as a C function, kept on disk beside that file."""
    from numba import cfunc

    return cfunc("void(CPointer(int64))", cache=is_kept)(entry)


@cache
def _say_not_kept(why: str) -> None:
    log.warn(f"each load compiles the kernels anew, for seconds: they can't be kept: {why}")


@cache
def _load_package() -> tuple[str, bool]:
    """The package of kernels, and whether what it compiles is kept on disk."""
    sources = {name: Path(__file__).with_name(name).read_bytes() for name in _SOURCES}
    digest = hashlib.sha256(b"".join(sources.values())).hexdigest()[:16]
    for folder in private_folders(digest):
        if all(_is_copy(folder / name, source) for name, source in sources.items()):
            return _packaged(folder, digest), True
    _say_not_kept("no folder for caches is this user's alone; XDG_CACHE_HOME may name one")
    return _packaged(Path(__file__).parent, digest), False


def _is_copy(path: Path, source: bytes) -> bool:
    """Puts ``source`` at ``path``; False where that can't be."""
    try:
        if not path.exists() or path.read_bytes() != source:
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_bytes(source)
            temporary.replace(path)
    except OSError:
        return False
    return True


def _packaged(folder: Path, digest: str) -> str:
    """Makes the modules in a folder those of a package -> its name."""
    package = ModuleType(f"hf_triton_kernels_{digest}")
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package  # where Numba looks for what it kept
    return package.__name__
