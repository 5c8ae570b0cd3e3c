"""``hooks:`` of a model: a Python file, looked at without running it."""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from generator.yaml_file.keys import GOT, SAID, Mistake, Refused, refused
from hf_triton.runtime.regular_file import read_regular

FUNCTIONS = ("preprocess", "postprocess")
_ARGUMENT = {"preprocess": "request", "postprocess": "response"}
_LIBRARY = "hf_triton"
_MAX_BYTES = 2**20


@dataclass(frozen=True)
class HooksFile:
    path: Path
    content: bytes


def find_hooks(value: str, base: Path) -> HooksFile:
    """Paths are relative to ``base``. Raises Refused with every mistake in the file."""
    path = Path(os.path.normpath(base / Path(value).expanduser()))
    content = _read(path)
    if problems := [Mistake(message, SAID) for message in problems_of(content, path)]:
        raise Refused(*problems)
    return HooksFile(path, content)


def problems_of(content: bytes, path: Path) -> Iterator[str]:
    try:
        tree = _parse(content, path.name)
    except SyntaxError as error:
        yield f"{path.name}:{error.lineno or 1}: {error.msg}"
        return
    except (ValueError, RecursionError, MemoryError) as error:
        yield f"{path.name}: can't be parsed: {error}"
        return
    found = [part for part in tree.body if getattr(part, "name", None) in FUNCTIONS]
    if not found:
        names = " nor ".join(f"{name}({_ARGUMENT[name]})" for name in FUNCTIONS)
        yield f"{path.name} has neither {names} at its top level"
    for function in found:
        yield from _function_problems(function, path.name)
    yield from _neighbours(tree, path)


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, _MAX_BYTES)
    except FileNotFoundError:
        raise refused(f"but {path} is no such file", GOT) from None
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


def _function_problems(function: ast.stmt, file: str) -> Iterator[str]:
    name = getattr(function, "name", "")
    wanted = f"expected def {name}({_ARGUMENT[name]})"
    place = f"{file}:{function.lineno}: {name}"
    if not isinstance(function, ast.FunctionDef):
        kind = "a class" if isinstance(function, ast.ClassDef) else "async"
        yield f"{place} is {kind}, {wanted}"
        return
    arguments = function.args
    positional = len(arguments.posonlyargs) + len(arguments.args)
    num_required = positional - len(arguments.defaults)
    takes_one = num_required <= 1 and (positional or arguments.vararg)
    if not takes_one or None in arguments.kw_defaults:
        yield f"{place} does not take one argument, {wanted}"


def _neighbours(tree: ast.Module, path: Path) -> Iterator[str]:
    """Finds imports of files beside it: these are not copied to where the model runs."""
    for part in ast.walk(tree):
        if not isinstance(part, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in part.names]
        if isinstance(part, ast.ImportFrom):
            names = ["" if part.level else part.module or ""]
        for name in (name.split(".")[0] for name in names):
            if name == _LIBRARY:  # beside it in a checkout
                continue
            beside = (path.parent / f"{name}.py", path.parent / name / "__init__.py")
            if not name or any(file.is_file() for file in beside):
                shown = f"{name} from beside it" if name else "a file beside it"
                only = "only the hooks file itself is copied into the model"
                yield f"{path.name}:{part.lineno}: imports {shown}, but {only}"
