"""What a sandboxed process does with chat templates, by transformers' own way to compile them.

Of transformers the one module is imported: the package as a whole takes a second and 50 MB more.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_MODULE = "transformers.utils.chat_template_utils"
_MOST_CHARACTERS = 64 * 2**20


def make_ready(_: bytes) -> None:
    spec = PathFinder.find_spec("transformers")
    for folder in (spec and spec.submodule_search_locations) or ():
        _put_bare_package("transformers", Path(folder))
        _put_bare_package("transformers.utils", Path(folder, "utils"))
    importlib.import_module(_MODULE)


def variables(template: bytes) -> bytes:
    """The variables that a template takes, as JSON; or the error, as ``render``."""
    return _told(lambda: sorted(_utils()._get_template_variables(template.decode())))  # noqa: SLF001


def render(template: bytes, given: bytes) -> bytes:
    """A chat as text, as JSON: ``{"is": text}``, or ``{"error": [type, text]}``."""
    return _told(lambda: _rendered(template.decode(), json.loads(given)))


def _rendered(template: str, given: dict[str, Any]) -> str:
    text: str = _utils()._compile_jinja_template(template).render(**given)  # noqa: SLF001
    if len(text) > _MOST_CHARACTERS:
        raise MemoryError
    return text


def _told(make: Any) -> bytes:
    try:
        return json.dumps({"is": make()}).encode()
    except Exception as error:
        return json.dumps({"error": [type(error).__name__, str(error)]}).encode()


def _utils() -> Any:
    return sys.modules[_MODULE]


def _put_bare_package(name: str, folder: Path) -> None:
    """Without the code of its __init__."""
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
