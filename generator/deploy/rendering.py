"""Renders the templates of a deployment, and reads back what came out.

Every text passes a filter that quotes it, or printing it is refused: nothing that a flag or a
models.yaml says can end a string early. Knows YAML; knows nothing of what is deployed.
"""

from __future__ import annotations

import functools
import string
from pathlib import Path

import jinja2
from markupsafe import Markup

from generator.deploy.options import quantity
from generator.render.strict_jinja import Filter, rendered, strict_environment

_TEMPLATES = Path(__file__).parent / "templates"
_SAFE = frozenset(string.ascii_letters + string.digits + string.punctuation + " ") - {'"', "\\"}


def render(name: str, **values: object) -> bytes:
    """The text of a template. Raises TemplateError where it is broken."""
    return rendered(_environment(), name, **values).encode()


def read(name: str) -> str:
    """A file beside the templates, as it is."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def quote(text: str) -> Markup:
    """``text`` as a double-quoted string of YAML, in ASCII: what it holds stays inside."""
    return Markup('"{}"').format(Markup("".join(map(_escape, text))))  # noqa: S704


def quote_for_compose(text: str) -> Markup:
    """As ``quote``, where Compose replaces ``$NAME``: a dollar is written twice."""
    return quote(text.replace("$", "$$"))


def block(text: str, indent: int) -> Markup:
    """``text`` as a literal block indented by so many spaces, or quoted where none can hold it."""
    lines = text.split("\n")
    printable = all(_is_plain(character) for line in lines for character in line)
    has_edge = text[:1] in (" ", "\n") or any(line != line.rstrip() for line in lines)
    if not printable or has_edge or not text.endswith("\n") or text.endswith("\n\n"):
        return quote(text)
    margin = " " * indent
    body = "\n".join(f"{margin}{line}" if line else "" for line in lines[:-1])
    return Markup("|\n{}").format(Markup(body))  # noqa: S704


def _escape(character: str) -> str:
    if character in _SAFE:
        return character
    if character in '"\\':
        return f"\\{character}"
    code = ord(character)
    return "\\n" if code == 10 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _is_plain(character: str) -> bool:
    return character in _SAFE or character in '"\\'


@functools.lru_cache
def _environment() -> jinja2.Environment:
    filters: dict[str, Filter] = {
        "yaml": quote,
        "quantity": lambda mib: quote(quantity(mib)),
        "compose": quote_for_compose,
        "block": block,
    }
    return strict_environment(_TEMPLATES, filters, "unquoted")
