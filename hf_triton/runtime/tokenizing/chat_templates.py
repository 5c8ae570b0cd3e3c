"""Has chat templates compiled and rendered in a sandbox, whoever asks transformers for it: what a
template computes is up to whoever wrote it, and a loop of it would hold up everything else.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import RequestError, RuntimeModelError
from ..sandbox.pool import Sandbox, SandboxError
from . import templates_in_sandbox

LIMIT_S = 5.0
_SANDBOX = Sandbox(templates_in_sandbox.make_ready)


def render_in_sandbox(owner: Any) -> None:
    """From now on, in this process. Where ``owner`` has a chat template, the sandbox starts while
    its model is loaded.
    """
    from transformers.utils import chat_template_utils

    patched: Any = chat_template_utils
    patched._compile_jinja_template = _Compiled  # noqa: SLF001
    if getattr(owner, "chat_template", None):
        start = partial(_SANDBOX.call, templates_in_sandbox.variables, b"", time_limit_s=LIMIT_S)
        threading.Thread(target=_quietly, args=(start,), name="templates", daemon=True).start()


class _Compiled:
    """Stands in for a compiled template of jinja2, and for its environment."""

    def __init__(self, chat_template: str) -> None:
        self._template = chat_template.encode("utf-8", "surrogatepass")
        self.environment = self

    def parse(self, _: str) -> Any:
        """A template that takes the same variables, parsed. Raises as ``render``."""
        from jinja2 import Environment

        names = _call(templates_in_sandbox.variables, self._template)
        return Environment(autoescape=True).parse("".join(f"{{{{ {name} }}}}" for name in names))

    def render(self, **given: Any) -> str:
        """
        Raises:
            RequestError: it takes too much time or memory.
        """
        text: str = _call(
            templates_in_sandbox.render, self._template, json.dumps(given, default=_named).encode()
        )
        return text


def _call(function: Callable[..., bytes], *given: bytes) -> Any:
    try:
        told = json.loads(_SANDBOX.call(function, *given, time_limit_s=LIMIT_S))
    except SandboxError:
        told = {"error": ["MemoryError", ""]}
    if "is" in told:
        return told["is"]
    kind, text = told["error"]
    if kind == "MemoryError":
        raise RequestError(
            f"messages: this model's chat template takes more than {LIMIT_S:g} s, or too much "
            "memory, to render them"
        )
    raise type(kind, (Exception,), {})(text)  # TemplateError: what the template itself says


def _quietly(start: Callable[[], object]) -> None:
    with contextlib.suppress(SandboxError, RuntimeModelError):  # the first chat tells of it
        start()


def _named(value: Any) -> str:
    """What stands for an image or a sound: templates see that it is there."""
    return f"<{type(value).__name__}>"
