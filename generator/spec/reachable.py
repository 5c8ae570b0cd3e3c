"""Which files of a version folder its model.py can reach by its imports: those that are copied.

Sources are given as they will lie in that folder: paths relative to it, and contents. The folder is
a package (``from .options import Options``) and on Python's path (``from hf_runtime import log``).
Knows nothing of tasks. A name put together at run time, for ``importlib.import_module``, is not
found.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

MODEL_FILE = "model.py"
_PACKAGE_FILE = "__init__.py"
_MAIN_FILE = "__main__.py"
_MAIN = b'\nif __name__ == "__main__":'


class _Import(NamedTuple):
    """``from ..module import names``, with as many dots as ``level``."""

    level: int
    module: str
    names: tuple[str, ...] = ()


def reachable(sources: Mapping[str, bytes]) -> set[str]:
    """The paths of model.py, of the modules that are for ``python -m``, of all that they import or
    read from beside them, and of the packages on the way.
    """
    found: set[str] = set()
    waiting = [path for path in sources if _is_started(path, sources[path])]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += (other for other in _used_by(path, sources[path]) if other in sources)
    return found


def _is_started(path: str, source: bytes) -> bool:
    return path == MODEL_FILE or path.rpartition("/")[2] == _MAIN_FILE or _MAIN in source


def _used_by(path: str, source: bytes) -> Iterator[str]:
    """Where a module's imports may lie; also where nothing of ours is."""
    folders = path.split("/")[:-1]
    for depth in range(len(folders) + 1):
        yield _joined(*folders[:depth], _PACKAGE_FILE)
    for level, module, names in _imports(source):
        base = folders[: len(folders) + 1 - level] if level else []
        parts = [*base, *module.split(".")] if module else base
        yield from _files(parts)
        for name in names:  # of a module or of what it holds
            yield from _files([*parts, name])
    for name in _files_read(source):
        yield _joined(*folders, name)


def _files(parts: Collection[str]) -> tuple[str, str]:
    return f"{_joined(*parts)}.py", _joined(*parts, _PACKAGE_FILE)


def _joined(*parts: str) -> str:
    return "/".join(parts)


@lru_cache(maxsize=1024)
def _imports(source: bytes) -> tuple[_Import, ...]:
    return tuple(_imports_in(ast.parse(source).body))


def _imports_in(body: Iterable[ast.AST]) -> Iterator[_Import]:
    """Those of functions too; not those under ``if TYPE_CHECKING:``, which are never run."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (_Import(0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield _Import(node.level, node.module or "", tuple(one.name for one in node.names))
        elif isinstance(node, ast.If) and _is_for_type_checkers(node.test):
            yield from _imports_in(node.orelse)
        else:  # statements alone: expressions hold no imports, and most of a module's nodes
            for inner in ("body", "orelse", "handlers", "finalbody", "cases"):
                found = getattr(node, inner, None)
                yield from _imports_in(found if isinstance(found, list) else ())


def _is_for_type_checkers(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", None), getattr(test, "attr", None))


@lru_cache(maxsize=1024)
def _files_read(source: bytes) -> tuple[str, ...]:
    """``kernels.py``, of a module that says ``Path(__file__).with_name("kernels.py")``."""
    if b"__file__" not in source:
        return ()
    nodes = ast.walk(ast.parse(source))
    texts = (str(node.value) for node in nodes if isinstance(node, ast.Constant))
    return tuple(text for text in texts if text.endswith(".py"))
