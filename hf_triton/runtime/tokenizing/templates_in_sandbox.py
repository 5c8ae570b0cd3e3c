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

_MODULE = "transformers.utils.chat_template_utils"
_MOST_CHARACTERS = 64 * 2**20


def make_ready() -> None:
    spec = PathFinder.find_spec("transformers")
    for folder in (spec and spec.submodule_search_locations) or ():
        _put_bare_package("transformers", Path(folder))
        _put_bare_package("transformers.utils", Path(folder, "utils"))
    importlib.import_module(_MODULE)


def render(template: bytes, given: bytes) -> bytes:
    """A chat as text, as JSON: ``{"is": text}``, or ``{"error": [type, text]}``."""
    try:
        return json.dumps({"is": _rendered(template, given)}).encode()
    except Exception as error:
        return json.dumps({"error": [type(error).__name__, str(error)]}).encode()


def _rendered(template: bytes, given: bytes) -> str:
    compiled = sys.modules[_MODULE]._compile_jinja_template(template.decode())  # noqa: SLF001
    text: str = compiled.render(**json.loads(given))
    if len(text) > _MOST_CHARACTERS:
        raise MemoryError
    return text


def _put_bare_package(name: str, folder: Path) -> None:
    """Without the code of its __init__."""
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
