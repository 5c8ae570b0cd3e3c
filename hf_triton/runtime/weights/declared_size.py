"""Compares the model that a configuration describes with its weight files while it is built, and
reads what the headers of the files say. A configuration with a thousand times as many layers would
otherwise fill memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch.nn.modules.module import register_module_parameter_registration_hook

from ..errors import LoadError, reason

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
# A byte of a file holds four weights of 2 bits, each is registered when it is made and when it is
# read, and some models make a shared table several times before they tie it.
_ELEMENTS_OF_A_BYTE = 8
_TIMES_UNPACKED = 8  # blocks of GGUF become numbers
_ALWAYS = 2**26  # elements: heads that a file may lack
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}  # safetensors' names


@contextmanager
def within_files(files: Path) -> Iterator[None]:
    """While it is entered, no model is made that is many times larger than the files of a folder:
    LoadError.
    """
    num_bytes = weight_bytes(files)
    config = next((path.name for path in files.rglob("*.gguf")), "config.json")
    times = 1 if config == "config.json" else _TIMES_UNPACKED
    left = num_bytes * _ELEMENTS_OF_A_BYTE * times + _ALWAYS

    def count(_module: object, _name: str, parameter: torch.Tensor | None) -> None:
        nonlocal left
        left -= 0 if parameter is None else parameter.numel()
        if left < 0:
            raise LoadError(
                f"{config}: the model that it describes is many times larger than its weights, "
                f"which are {num_bytes} bytes"
            )

    counting = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        counting.remove()


def check_headers(source: str, files: Path) -> None:
    """Raises LoadError for a file of safetensors in the folder that is not whole."""
    for path in sorted(files.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError, MemoryError) as error:
            raise LoadError(f"{source}: {path.name}: {reason(error)}") from None


def weight_bytes(files: Path) -> int:
    """The size of all files of weights in a model's folder."""
    return sum(
        Path(parent, name).stat().st_size
        for parent, _, names in os.walk(files)
        for name in names
        if name.endswith(_WEIGHTS) and Path(parent, name).is_file()
    )


def saved_dtype(files: Path) -> torch.dtype | None:
    """The dtype of the first numbers that the folder's files of safetensors hold."""
    for path in sorted(files.glob("*.safetensors")):
        with suppress(SafetensorError, OSError, MemoryError), safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                found = _DTYPES.get(file.get_slice(name).get_dtype())
                if found is not None:
                    return found
    return None
