"""Leaves out of a JSON schema what only names it. Clients write any text there ("Output Format"),
and llguidance refuses a ``$schema`` that it doesn't know and an ``$id`` that is no URI.
"""

from __future__ import annotations

import re
from typing import Any

# By these an ``$id`` may be an anchor, and in draft 4 ``id`` is one.
_DRAFTS = re.compile(
    r"http://json-schema\.org/draft-0[467]/schema#?"
    r"|https://json-schema\.org/draft/20(19-09|20-12)/schema#?"
)
# RFC 3986, appendix A; without addresses in brackets.
_URI = re.compile(
    r"(?:[a-z][a-z0-9+.-]*:|(?![^/?]*:))(?:[\w.~!$&'()*+,;=:@/?-]|%[0-9a-f]{2})*#?", re.A | re.I
)
_VALUES = {"const", "enum", "default", "examples"}
_BY_NAME = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}


def without_names(schema: dict[str, Any]) -> None:
    """Removes from a schema each ``$schema`` that is no known one's, and each ``$id`` that no
    ``$ref`` needs: those to ``#…`` need that of the schema around them, others may need any.
    """
    named: list[dict[str, Any]] = []
    to: set[str] = set()
    around = set[int]()  # ids of schemas within which a reference is to their own parts
    left: list[tuple[Any, dict[str, Any], bool]] = [(schema, schema, False)]
    while left:
        value, within, is_by_name = left.pop()
        if isinstance(value, list):
            left += ((one, within, False) for one in value)
        elif isinstance(value, dict) and is_by_name:
            left += ((one, within, False) for one in value.values())
        elif isinstance(value, dict):
            if _ids(value):
                named.append(value)
                within = value
            if isinstance(reference := value.get("$ref"), str):
                to.add(reference)
                around.update([id(within)] if reference.startswith("#") else [])
            if not _DRAFTS.fullmatch(str(value.get("$schema"))):
                value.pop("$schema", None)
            below = ((name, one) for name, one in value.items() if name not in _VALUES)
            left += ((one, within, name in _BY_NAME) for name, one in below)
    around.discard(id(schema))  # by itself a schema's references are to it
    is_elsewhere = not all(one.startswith("#") for one in to)
    for one in named:
        for name in _ids(one):
            is_anchor = "#" in one[name].rstrip("#")
            is_needed = is_elsewhere or id(one) in around
            if one[name] not in to if is_anchor else not (is_needed and _URI.fullmatch(one[name])):
                del one[name]


def _ids(schema: dict[str, Any]) -> list[str]:
    return [name for name in ("$id", "id") if isinstance(schema.get(name), str)]
