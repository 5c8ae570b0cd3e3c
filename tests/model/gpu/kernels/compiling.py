"""Compiles launches of kernels for GPUs on a machine without any: LLVM and ptxas come with OpenAI
Triton.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hf_triton.text_generation.forward.gpu.launching import Launch

_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
_POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_ALIGNED = [["tt.divisibility", 16]]  # as launches on a GPU find pointers and sizes to be


@dataclass(frozen=True)
class Recorded:
    """A launch that was asked for."""

    kernel: Any
    how: Launch
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes: registers, bytes of stack (where spilled registers go) and of
    other local memory, each a thread; bytes of shared memory a program.
    """

    registers: int
    stack: int
    local: int
    shared: int


def compiled(launch: Recorded, capability: int) -> Resources:
    """Compiles a launch for sm_``capability``."""
    source = _source(launch)
    options = {"num_warps": launch.how.num_warps, "num_stages": launch.how.num_stages}
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(_CUOBJDUMP), "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+).* LOCAL:(\d+)", usage)
    assert found is not None, usage
    registers, stack, local = map(int, found.groups())
    return Resources(registers, stack, local, kernel.metadata.shared)


def unaligned(kernel: Any) -> set[str]:
    """The arguments that a kernel is compiled once for, however they are aligned."""
    return {
        p.name for p in kernel.params if p.do_not_specialize or p.do_not_specialize_on_alignment
    }


def _source(launch: Recorded) -> ASTSource:
    kernel = launch.kernel
    constants = {**launch.how.constants, **launch.constants}
    names = [name for name in kernel.arg_names if name not in constants]
    assert len(names) == len(launch.arguments), "each argument is given once"
    unspecialised = unaligned(kernel)
    signature = dict.fromkeys(constants, "constexpr")
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for name, value in zip(names, launch.arguments, strict=True):
        at = (kernel.arg_names.index(name),)
        if isinstance(value, torch.Tensor):
            signature[name] = _POINTERS[value.dtype]
            attributes |= {at: _ALIGNED} if name not in unspecialised else {}
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
            if isinstance(value, int) and value % 16 == 0 and name not in unspecialised:
                attributes[at] = _ALIGNED
    ordered = {name: signature[name] for name in kernel.arg_names}
    return ASTSource(kernel, ordered, constants, attributes)
