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
import struct
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from hf_triton.runtime import disk_cache, log
from hf_triton.runtime.errors import reason
from hf_triton.runtime.private_folders import private_folders

from .thread_team import Kernel

_SYMBOLS = 2  # SHT_SYMTAB
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")

KERNELS = "kernels.py"
# Which import the first.
STATE_KERNELS, EXPERT_KERNELS = "state_kernels.py", "expert_kernels.py"
TEXT_KERNELS = "text_kernels.py"
_SOURCES = ("layout.py", KERNELS, STATE_KERNELS, EXPERT_KERNELS, TEXT_KERNELS)
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

    module = importlib.import_module(f"{__package__}.{Path(source).stem}")
    return cfunc("void(CPointer(int64))")(module.ENTRIES[name, dtype])


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
    folder = next(private_folders("objects"), None)
    return folder and folder / hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def _keep(path: Path | None, key: tuple[Any, ...], function: Any) -> None:
    """Keeps a compiled function, where it can be loaded without Numba."""
    if path is None:
        _say_not_kept("no folder for caches is this user's alone; XDG_CACHE_HOME may name one")
        return
    try:
        code = function._library.serialize_using_object_code()[2][0]  # noqa: SLF001
        missing = [one for one in undefined_symbols(code) if not _has_symbol(one)]
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


def undefined_symbols(code: bytes) -> list[str]:
    """The names that an object file uses and doesn't define. Raises ValueError of other bytes.

    Object files of machine code are read as far as it takes to know what else they need (ELF, 64
    bits: https://refspecs.linuxfoundation.org/elf/elf.pdf).
    """
    if not code.startswith(b"\x7fELF\x02\x01"):
        raise ValueError("no object file of this kind of processor")
    offset, size, count = (_HEADER.unpack_from(code)[index] for index in (6, 11, 12))
    sections = [_SECTION.unpack_from(code, offset + n * size) for n in range(count)]
    names = []
    for _, kind, _, _, begin, length, link, _, _, _ in sections:
        texts = sections[link][4]
        for place in range(begin, begin + length, _SYMBOL.size) if kind == _SYMBOLS else ():
            name, _, _, section, _, _ = _SYMBOL.unpack_from(code, place)
            if name and not section:
                names.append(code[texts + name : code.index(b"\0", texts + name)].decode())
    return names
