"""Loads the kernels, which Numba compiles once on a machine, and runs them on the thread team that
torch computes with: a second team on the same cores halves the speed of both.

Their machine code is kept, and loaded without Numba, whose import takes five times as long as
loading all kernels of a model. It is executed without a check: only a folder that nobody else can
write to is used. ``GOMP_parallel`` is what code compiled by GCC with ``-fopenmp`` calls
(https://gcc.gnu.org/onlinedocs/libgomp/Implementing-PARALLEL-construct.html). Where torch's OpenMP
is not libgomp the loops run on the calling thread alone.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from hf_triton.runtime import disk_cache, log
from hf_triton.runtime.errors import reason

from .layout import COUNTERS, NUM_ARGUMENTS

# The modules of kernels, the first of which all others import.
_MODULES = ("kernels", "state_kernels", "expert_kernels", "text_kernels", "draw_kernels")
# Functions of Numba's that a kernel calls where it has raised an exception, and the first of them.
# None does: without Numba the process would end there.
_RAISING = (
    *("NRT_Free", "numba_do_raise", "numba_gil_ensure", "numba_gil_release"),
    *("numba_runtime_build_excinfo_struct", "numba_unpickle"),
)
# Numbers that a kernel computes. Of few, starting the threads costs more than it saves. While it
# computes no more than some, other Python threads wait: to give them the interpreter's lock and
# wait for it would take longer.
_FEW, _MANY = 2**12, 2**17
Arguments = ctypes.c_int64 * NUM_ARGUMENTS


class ThreadTeam:
    """The calling thread and torch's other threads: as many work on a kernel as torch computes with
    at the time, at most ``num_threads``.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._parallel = self._brief = None
        if num_threads > 1:
            self._parallel, self._brief = map(gomp_parallel, (ctypes.CDLL, ctypes.PyDLL))
        if self._parallel is None:
            self.num_threads = 1
        self._scratch: dict[int, torch.Tensor] = {}

    def scratch(self, size: int) -> torch.Tensor:
        """(num_threads, size) float32 for kernels to write in; one for all of a size."""
        if size not in self._scratch:
            self._scratch[size] = torch.empty(self.num_threads, size)
        return self._scratch[size]

    def run(self, kernel: Kernel, *arguments: int, numbers: int = _MANY) -> None:
        """Runs a kernel and waits for its end. ``numbers`` is about how many it computes; few are
        computed on one thread.

        ``arguments`` are integers: sizes, addresses of contiguous memory that outlives the call, or
        ``bits_of`` a float.
        """
        self.run_with(kernel, Arguments(0, 0, *arguments), numbers=numbers)

    def run_with(self, kernel: Kernel, arguments: Any, *, numbers: int = _MANY) -> None:
        """The same with ``Arguments`` that are kept: their counters begin anew."""
        arguments[COUNTERS] = arguments[COUNTERS + 1] = 0
        num_threads = 1
        if numbers > _FEW:
            num_threads = min(self.num_threads, torch.get_num_threads())
        if num_threads == 1:
            (kernel.call if numbers >= _MANY else kernel.call_briefly)(arguments)
        else:
            parallel: Any = self._parallel if numbers >= _MANY else self._brief
            parallel(kernel.address, arguments, num_threads, 0)


@cache
def team_of(num_threads: int) -> ThreadTeam:
    return ThreadTeam(num_threads)


def kept_arguments(numbers: Mapping[int, int]) -> Any:
    """``Arguments`` by their places."""
    return Arguments(*(numbers.get(place, 0) for place in range(NUM_ARGUMENTS)))


class Kernel:
    """A compiled function ``void(int64 *arguments)`` at ``address``; each thread in it takes tasks
    until there are none.
    """

    def __init__(self, address: int, owner: object) -> None:
        """``owner`` is what the machine code lives as long as."""
        self.address = address
        self.owner = owner
        types = None, ctypes.POINTER(ctypes.c_int64)
        self.call = ctypes.CFUNCTYPE(*types)(address)
        self.call_briefly = ctypes.PYFUNCTYPE(*types)(address)  # keeps the interpreter's lock


@cache
def bits_of(value: float) -> int:
    """A float64 as the integer that has its bits."""
    return ctypes.c_int64.from_buffer(ctypes.c_double(value)).value


def gomp_parallel(kind: type[ctypes.CDLL]) -> Any:
    """The entry of torch's own libgomp, or None; as a PyDLL it keeps the interpreter's lock."""
    torch_folder = Path(torch.__file__).parent
    copies = [
        *torch_folder.glob("lib/libgomp*"),
        *torch_folder.parent.glob("torch.libs/libgomp*"),  # in wheels for Arm
    ]
    for path in copies:
        with suppress(OSError, AttributeError):
            # RTLD_NOLOAD: the copy that is there, never a second one.
            entry = kind(str(path), mode=ctypes.RTLD_LOCAL | 4).GOMP_parallel
            entry.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
            entry.restype = None
            return entry
    return None


@cache
def load_kernel(name: str, dtype: torch.dtype) -> Kernel:
    """Compiling a kernel takes seconds, once on a machine. Raises ImportError without Numba."""
    path = disk_cache.path_of("objects", name, dtype, *_conditions())
    kept = disk_cache.get(path)
    if not kept:
        with disk_cache.exclusive(path):
            kept = disk_cache.get(path)
            if not kept:
                function = _compiled(name, dtype)
                _keep(path, function)
                return Kernel(function.address, function)
    return _loaded(kept)


def _compiled(name: str, dtype: torch.dtype) -> Any:
    from numba import cfunc

    modules: list[Any] = [importlib.import_module(f"{__package__}.{one}") for one in _MODULES]
    at = {torch.float32: modules[0].float32_at, torch.bfloat16: modules[0].bfloat16_at}[dtype]
    (kernel,) = (vars(one)[f"_{name}"] for one in modules if f"_{name}" in vars(one))
    return cfunc("void(CPointer(int64))")(lambda arguments: kernel(arguments, at))


@cache
def _conditions() -> tuple[Any, ...]:
    """The sources, compiler and processor of machine code. Raises ImportError."""
    from llvmlite import binding

    sources = (Path(__file__).with_name(f"{n}.py") for n in ("layout", *_MODULES))
    code = b"".join(source.read_bytes() for source in sources)
    try:
        versions = metadata.version("numba"), metadata.version("llvmlite")
    except metadata.PackageNotFoundError as error:
        raise ImportError(str(error)) from error
    processor = [binding.get_host_cpu_name()]
    with suppress(RuntimeError):  # as Numba has it: not all processors have a list
        processor.append(binding.get_host_cpu_features().flatten())
    variables = tuple(sorted(one for one in os.environ.items() if one[0].startswith("NUMBA_")))
    return hashlib.sha256(code).hexdigest(), *versions, *processor, variables


def _keep(path: Path | None, function: Any) -> None:
    """Keeps a compiled function, where it can be loaded without Numba."""
    if path is None:
        say_not_kept("no cache folder belongs to this user alone; set XDG_CACHE_HOME to one")
        return
    from llvmlite import binding

    try:
        library = function._library  # noqa: SLF001
        code = library.serialize_using_object_code()[2][0]
        parsed = binding.parse_assembly(library.get_llvm_str())
        uses = [one for one in (*parsed.functions, *parsed.global_variables) if one.is_declaration]
        called = [one.name for one in uses if not one.name.startswith("llvm.")]
        # Python's own names are in every process; those of _RAISING are never called.
        missing = [n for n in called if n not in _RAISING and not hasattr(ctypes.pythonapi, n)]
        if missing:
            raise ValueError(f"they call {', '.join(missing)}")
        disk_cache.put(path, function.native_name.encode() + b"\0" + code)
    except Exception as error:  # whatever another Numba raises
        say_not_kept(f"{type(error).__name__}: {reason(error)}")


def _loaded(kept: bytes) -> Kernel:
    """``kept``: the function's name, a zero byte, and an object file."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    end = ctypes.cast(ctypes.pythonapi.abort, ctypes.c_void_p).value
    for raising in _RAISING:
        if not binding.address_of_symbol(raising):
            binding.add_symbol(raising, end)
    target = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target)
    name, _, code = kept.partition(b"\0")
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Kernel(engine.get_function_address(name.decode()), engine)


@cache
def say_not_kept(why: str) -> None:
    log.warn(f"compiled kernels can't be cached, so each load compiles them for seconds: {why}")
