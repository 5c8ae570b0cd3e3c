"""Jinja as our templates need it: printing what is undefined, or unsafe text, is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import jinja2
from markupsafe import Markup

from generator.errors import TemplateError

Filter = Callable[..., Markup]


def strict_environment(
    folder: Path, filters: Mapping[str, Filter], unsafe: str
) -> jinja2.Environment:
    """The templates in ``folder``; ``unsafe`` ends the error on a value that passed no filter."""

    def printable(value: object) -> object:
        if isinstance(value, jinja2.Undefined):
            str(value)  # raises, and says what is undefined
        if isinstance(value, Markup) or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise TemplateError(f"a template prints {value!r} {unsafe}")

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        autoescape=True,  # for its bookkeeping of which text is safe; no HTML is made here
        finalize=printable,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(filters)
    return environment


def rendered(environment: jinja2.Environment, name: str, **values: object) -> str:
    """A template's text. Raises TemplateError, with the line, where it is broken."""
    try:
        return environment.get_template(name).render(**values)
    except jinja2.TemplateError as error:
        place = f"{getattr(error, 'name', None) or name}:{getattr(error, 'lineno', None) or '?'}"
        raise TemplateError(f"{place}: {error}") from error
