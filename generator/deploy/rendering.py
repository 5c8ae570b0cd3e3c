"""Renders the templates of a deployment.

Every text passes a filter that quotes it, or printing it is refused: nothing that a flag or a
models.yaml says can end a string early. Knows YAML; knows nothing of what is deployed.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path

import jinja2
import yaml
from markupsafe import Markup

from generator.deploy.options import quantity
from generator.deploy.server import Server
from generator.render.strict_jinja import Filter, rendered, strict_environment

_TEMPLATES = Path(__file__).parent / "templates"
_INDENT = 2  # of PyYAML's blocks


def render(name: str, server: Server, **values: object) -> bytes:
    """The text of a template, to which ``s`` are the server's options. Raises TemplateError where
    it is broken.
    """
    return rendered(_environment(), name, server=server, s=server.asked, **values).encode()


def read(name: str) -> str:
    """A file beside the templates, as it is."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


@functools.lru_cache(maxsize=4096)
def quote(text: str) -> Markup:
    """``text`` as a double-quoted string of YAML, in ASCII: what it holds stays inside."""
    return Markup(_dumped(text, '"')[0])  # noqa: S704


def quote_for_compose(text: str) -> Markup:
    """Quotes with each dollar written twice, because Compose replaces ``$NAME``."""
    return quote(text.replace("$", "$$"))


def block(text: str, indent: int) -> Markup:
    """``text`` as a literal YAML block with this ``indent``; quoted if a block can't hold it."""
    if text[:1].isspace() or not text.endswith("\n") or text.endswith("\n\n"):
        return quote(text)
    head, *lines = _dumped(text, "|")
    margin = " " * (indent - _INDENT)
    return Markup("\n".join([head, *(line and margin + line for line in lines)]))  # noqa: S704


def _dumped(text: str, style: str) -> list[str]:
    return yaml.safe_dump(text, default_style=style, width=math.inf).splitlines()


@functools.lru_cache
def _environment() -> jinja2.Environment:
    filters: dict[str, Filter] = {
        "yaml": quote,
        "quantity": lambda mib: quote(quantity(mib)),
        "compose": quote_for_compose,
        "block": block,
    }
    return strict_environment(_TEMPLATES, filters, "unquoted")
