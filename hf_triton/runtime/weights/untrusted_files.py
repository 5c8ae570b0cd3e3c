"""Checks a model's folder before any of its files is read: refuses, by name, irregular files, links
and paths that lead out of it, files of implausible size, and names of code on the Hub; and compares
the model that a configuration describes with its weights while it is built: one with a thousand
times as many layers would otherwise fill memory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LoadError, reason
from ..regular_file import MOST_JSON_BYTES, check_regular, read_json
from .hub_files import is_safe_path

if TYPE_CHECKING:
    import torch

# Files that transformers, PEFT and sentence-transformers read whole.
_READ_WHOLE = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
# Their JSON is followed; that of vocabularies is checked by the library that reads it.
_FOLLOWED = ("*config*.json", "*.index.json", "modules.json", "special_tokens_map.json")
# If it is invalid, transformers ignores it, and answers would not end.
_TAKEN_FOR_MISSING = "generation_config.json"
_PATHS = ("configuration_files", "fast_tokenizer_files", "transformers_weights", "class_info_file")
_IMPLEMENTATION = re.compile(r"(attn|experts)_implementation$")
# Implementations in transformers itself. Any other name is a repository of code.
_BUILT_IN = ("eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm")
# transformers loads code from the Hub for them where their package is not installed.
FROM_PACKAGES = ("flash_attention_2", "flash_attention_3", "flash_attention_4")

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
# A byte of a file holds four weights of 2 bits, each is registered when it is made and when it is
# read, and some models make a shared table several times before they tie it.
_ELEMENTS_OF_A_BYTE = 8
_TIMES_UNPACKED = 8  # blocks of GGUF become numbers
_ALWAYS = 2**26  # elements: heads that a file may lack


def check_files(source: str, folder: Path, *, trusts_code: bool) -> None:
    """Raises LoadError, which names the model, the first file that can't be used, and the key."""
    root = folder.resolve()
    for path in _entries(folder):
        try:
            target = path.resolve()
            blobs = target.parent  # of the Hub's cache: all links of a snapshot lead there
            is_blob = blobs.name == "blobs" and blobs.parent.name.startswith("models--")
            if not is_blob and not target.is_relative_to(root):
                raise ValueError("it is a link to a place outside the model's folder")
            if not path.is_dir():
                _check_file(path, trusts_code=trusts_code)
        except FileNotFoundError:
            continue  # a dangling link: the file's reader reports it
        except (OSError, ValueError, RuntimeError) as error:
            name = path.relative_to(folder).as_posix()
            said = getattr(error, "strerror", None) or reason(error)
            raise LoadError(f"{source}: {reason(LoadError(f'{name}: {said}'))}") from None


def _entries(folder: Path) -> Iterator[Path]:
    """All files, and links to folders; hidden folders are never read."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links = [name for name in folders if Path(parent, name).is_symlink()]
        yield from (Path(parent, name) for name in sorted([*files, *links]))


def _check_file(path: Path, *, trusts_code: bool) -> None:
    check_regular(path, MOST_JSON_BYTES if path.suffix in _READ_WHOLE else None)
    if not any(fnmatchcase(path.name, pattern) for pattern in _FOLLOWED):
        return
    try:
        found = read_json(path)
    except (json.JSONDecodeError, UnicodeDecodeError):
        if path.name == _TAKEN_FOR_MISSING:
            raise
        return  # the file's reader reports the error
    for names, value in _texts(found, ()):
        allowed = _allowed(names, value, trusts_code=trusts_code)
        if allowed is not None:
            text = repr(value)
            shown = text if len(text) <= 80 else f"{text[:79]}…"
            raise ValueError(f"{'.'.join(names)}: got {shown}, allowed: {allowed}")


def _texts(found: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each text with the names that lead to it; what lists hold has the names of the list."""
    if isinstance(found, dict):
        for name, value in found.items():
            yield from _texts(value, (*names, name))
    elif isinstance(found, list):
        for value in found:
            yield from _texts(value, names)
    elif isinstance(found, str):
        yield names, found


def _allowed(names: tuple[str, ...], value: str, *, trusts_code: bool) -> str | None:
    """Describes the values that a key may have; None where it may have this one."""
    if names[:1] == ("weight_map",) or (names and names[-1] in _PATHS):
        return None if is_safe_path(value) else "a path within the model's folder"
    if trusts_code:
        return None
    if any(map(_IMPLEMENTATION.search, names)) and value not in (*_BUILT_IN, *FROM_PACKAGES):
        return f"{', '.join(_BUILT_IN)}; others run code of the Hub (trust_remote_code)"
    if names and names[-1] == "audio_tokenizer_name_or_path":
        return "none; it loads another model of the Hub (trust_remote_code)"
    return None


@contextmanager
def within_files(files: Path) -> Iterator[None]:
    """LoadError where a model is made that is many times larger than the folder's files."""
    from torch.nn.modules.module import register_module_parameter_registration_hook

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


def read_headers(source: str, files: Path) -> torch.dtype | None:
    """The dtype of the first numbers in safetensors. Raises LoadError for a broken file."""
    import torch
    from safetensors import SafetensorError, safe_open

    dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    found = None
    for path in sorted(files.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                names = iter(file.keys())
                while found is None and (name := next(names, None)) is not None:
                    found = dtypes.get(file.get_slice(name).get_dtype())
        except (SafetensorError, OSError, MemoryError) as error:
            raise LoadError(f"{source}: {path.name}: {reason(error)}") from None
    return found


def weight_bytes(files: Path) -> int:
    """The size of all files of weights in a model's folder."""
    found = (path for path in files.rglob("*") if path.suffix in _WEIGHTS and path.is_file())
    return sum(path.stat().st_size for path in found)
