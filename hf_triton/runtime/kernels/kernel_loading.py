"""Loads the kernels so that they are compiled once on a machine, not once for every model.

Numba compiles them to machine code, which is kept in a folder of this user's and loaded from there
without Numba: importing that takes five times as long as loading all kernels of a model. Kept code
is executed without a check, so only a folder that nobody else can write to is used.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from hf_triton.runtime import disk_cache, log
from hf_triton.runtime.errors import reason

from .thread_team import Kernel

KERNELS = "kernels.py"
# Which import the first.
STATE_KERNELS, EXPERT_KERNELS = "state_kernels.py", "expert_kernels.py"
TEXT_KERNELS, DRAW_KERNELS = "text_kernels.py", "draw_kernels.py"
_SOURCES = ("layout.py", KERNELS, STATE_KERNELS, EXPERT_KERNELS, TEXT_KERNELS, DRAW_KERNELS)
# Functions of Numba's that a kernel calls where it has raised an exception, and the first of them.
# None does: without Numba the process would end there.
_RAISING = (
    *("NRT_Free", "numba_do_raise", "numba_gil_ensure", "numba_gil_release"),
    *("numba_runtime_build_excinfo_struct", "numba_unpickle"),
)


@cache
def load_kernel(name: str, dtype: str, source: str = KERNELS) -> Kernel:
    """A kernel of a source file; compiling it takes seconds, once on a machine. Raises ImportError
    without Numba.
    """
    key = (name, dtype, source, *_conditions())
    path = _path(key)
    found = path and disk_cache.get_at(path, key)
    if found:
        return _loaded(*found)
    with disk_cache.exclusive(path):
        found = path and disk_cache.get_at(path, key)
        if not found:
            function = _compiled(name, dtype, source)
            _keep(path, key, function)
            return Kernel(function.address, function)
    return _loaded(*found)


def _compiled(name: str, dtype: str, source: str) -> Any:
    """A function of a source file as a C function."""
    from numba import cfunc

    kernels = importlib.import_module(f"{__package__}.{Path(KERNELS).stem}")
    kernel = importlib.import_module(f"{__package__}.{Path(source).stem}").ENTRIES[name]
    at = {"float32": kernels.float32_at, "bfloat16": kernels.bfloat16_at}[dtype]
    return cfunc("void(CPointer(int64))")(lambda arguments: kernel(arguments, at))


@cache
def _conditions() -> tuple[Any, ...]:
    """What machine code depends on beside the function: sources, compiler, processor. Raises
    ImportError without Numba.
    """
    from llvmlite import binding

    code = b"".join(Path(__file__).with_name(source).read_bytes() for source in _SOURCES)
    try:
        versions = metadata.version("numba"), metadata.version("llvmlite")
    except metadata.PackageNotFoundError as error:
        raise ImportError(str(error)) from error
    processor = [binding.get_host_cpu_name()]
    with suppress(RuntimeError):  # as Numba has it: not all processors have a list
        processor.append(binding.get_host_cpu_features().flatten())
    variables = tuple(sorted(one for one in os.environ.items() if one[0].startswith("NUMBA_")))
    return hashlib.sha256(code).hexdigest(), *versions, *processor, variables


def _path(key: tuple[Any, ...]) -> Path | None:
    """Where a kernel may be kept."""
    folder = next(disk_cache.private_folders("objects"), None)
    return folder and folder / hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def _keep(path: Path | None, key: tuple[Any, ...], function: Any) -> None:
    """Keeps a compiled function, where it can be loaded without Numba."""
    if path is None:
        _say_not_kept("no folder for caches is this user's alone; XDG_CACHE_HOME may name one")
        return
    try:
        library = function._library  # noqa: SLF001
        code = library.serialize_using_object_code()[2][0]
        missing = [one for one in called_names(library.get_llvm_str()) if not _has_symbol(one)]
        if missing:
            raise ValueError(f"they call {', '.join(missing)}")
        disk_cache.put_at(path, key, (function.native_name, code))
    except Exception as error:  # whatever another Numba raises
        _say_not_kept(f"{type(error).__name__}: {reason(error)}")


def _has_symbol(name: str) -> bool:
    """Whether a function or variable is in every process, or never used."""
    return name in _RAISING or hasattr(ctypes.pythonapi, name)


def _loaded(name: str, code: bytes) -> Kernel:
    """A kernel from its machine code, an object file's bytes."""
    from llvmlite import binding

    engine = _new_engine()
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Kernel(engine.get_function_address(name), engine)


def _new_engine() -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    end = ctypes.cast(ctypes.pythonapi.abort, ctypes.c_void_p).value
    for name in _RAISING:
        if not binding.address_of_symbol(name):
            binding.add_symbol(name, end)
    target = binding.Target.from_default_triple().create_target_machine()
    return binding.create_mcjit_compiler(binding.parse_assembly(""), target)


@cache
def _say_not_kept(why: str) -> None:
    log.warn(f"each load compiles the kernels anew, for seconds: they can't be kept: {why}")


def called_names(module: str) -> list[str]:
    """The functions and variables that a module of LLVM uses and does not define."""
    from llvmlite import binding

    parsed = binding.parse_assembly(module)
    used = [one.name for one in (*parsed.functions, *parsed.global_variables) if one.is_declaration]
    return [name for name in used if not name.startswith("llvm.")]
