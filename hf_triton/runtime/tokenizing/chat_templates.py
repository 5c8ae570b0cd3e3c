"""Renders chat templates in a sandbox, for every caller of transformers.

How long that takes is up to the caller: gpt-oss' template looks from each call of a tool through
all later messages, half a minute for 8,000 calls. Meanwhile the interpreter's lock would be taken
from everybody else in this process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import threading
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import RequestError, RuntimeModelError
from ..sandbox.pool import Sandbox, SandboxError

LIMIT_S = 5.0
_MODULE = "transformers.utils.chat_template_utils"
_MOST_CHARACTERS = 64 * 2**20


def render_in_sandbox(owner: Any) -> None:
    """Renders chat templates in a sandbox from now on; it starts while the model loads."""
    from transformers.utils import chat_template_utils

    patched: Any = chat_template_utils
    patched._compile_jinja_template = _compiled  # noqa: SLF001
    if getattr(owner, "chat_template", None):
        threading.Thread(target=_start, name="templates", daemon=True).start()


class _Compiled:
    """Stands in for a compiled template of jinja2, whose environment it has."""

    def __init__(self, chat_template: str) -> None:
        from transformers.utils.chat_template_utils import _cached_compile_jinja_template

        self._template = chat_template.encode("utf-8", "surrogatepass")
        self.environment = _cached_compile_jinja_template(chat_template).environment

    def render(self, **given: Any) -> str:
        """Raises RequestError: it takes too much time or memory."""
        return _rendered_elsewhere(self._template, json.dumps(given, default=_named).encode())


_compiled = lru_cache(_Compiled)


def _rendered_elsewhere(*given: bytes) -> str:
    try:
        told = json.loads(_SANDBOX.call(render, *given, time_limit_s=LIMIT_S))
    except SandboxError:
        told = {"error": ["MemoryError", ""]}
    if "is" in told:
        return str(told["is"])
    kind, text = told["error"]
    if kind == "MemoryError":
        raise RequestError(
            f"messages: this model's chat template takes more than {LIMIT_S:g} s, or too much "
            "memory, to render them"
        )
    raise type(kind, (Exception,), {})(text)  # TemplateError: what the template itself says


def _start() -> None:
    with contextlib.suppress(RuntimeModelError):  # the first chat tells of it
        _rendered_elsewhere(b"", b"{}")


def _named(value: Any) -> str:
    """What stands for an image or a sound: templates see that it is there."""
    return f"<{type(value).__name__}>"


def make_ready() -> None:
    """Called in the sandbox. Of transformers the one module is imported: the package as a whole
    takes a second and 50 MB more.
    """
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


_SANDBOX = Sandbox(make_ready)
