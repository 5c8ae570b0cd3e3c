"""``hooks:`` of a model: a Python file, looked at without running it. What its functions take and
import shows when the model loads it and calls them.
"""

from __future__ import annotations

import ast
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from generator.yaml_file.keys import GOT, SAID, refused
from hf_triton.runtime.regular_file import read_regular

_FUNCTIONS = {"preprocess": "request", "postprocess": "response"}
_MAX_BYTES = 2**20


@dataclass(frozen=True)
class HooksFile:
    path: Path
    content: bytes


def find_hooks(value: str, base: Path) -> HooksFile:
    """Paths are relative to ``base``. Raises Refused."""
    path = Path(os.path.normpath(base / Path(value).expanduser()))
    content = _read(path)
    if problem := _problem(content, path.name):
        raise refused(problem, SAID)
    return HooksFile(path, content)


def _problem(content: bytes, name: str) -> str:
    """A mistake in the file, or an empty text."""
    try:
        tree = _parse(content, name)
    except SyntaxError as error:
        return f"{name}:{error.lineno or 1}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{name}: can't be parsed: {error}"
    if any(getattr(part, "name", None) in _FUNCTIONS for part in tree.body):
        return ""
    names = " nor ".join(f"{one}({argument})" for one, argument in _FUNCTIONS.items())
    return f"{name} has neither {names} at its top level"


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, _MAX_BYTES)
    except FileNotFoundError:
        raise refused(f"but there is no file {path}", GOT) from None
    except IsADirectoryError:
        raise refused(f"but {path} is a folder, expected a Python file", GOT) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise refused(f"but {path} can't be read: {why}", GOT) from None


def _parse(content: bytes, name: str) -> ast.Module:
    """Raises SyntaxError also for what only the compiler sees, such as a return in no function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(content, name)
        compile(content, name, "exec", dont_inherit=True)
    return tree
