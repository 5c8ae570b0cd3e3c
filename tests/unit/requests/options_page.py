"""The table of options in docs/requests.md, made from OPTIONS.

``python -m tests.unit.requests.options_page`` writes it.
"""

from __future__ import annotations

import re
from itertools import groupby

from hf_triton.text_generation.sequence.request_options import OPTIONS, Option
from tests.support.triton import ROOT

PAGE = ROOT / "docs" / "requests.md"
_PLACE = re.compile(r"(?<=<!-- options -->\n).*?(?=<!-- end of options -->)", re.DOTALL)
_HEAD = "| name | type | default | allowed | |\n|---|---|---|---|---|\n"


def with_table(page: str) -> str:
    """The text of the page with its table as OPTIONS are."""
    assert _PLACE.search(page)
    return _PLACE.sub(_table(), page)


def _table() -> str:
    rows = groupby(OPTIONS.items(), lambda one: _cells(one[1]))
    return _HEAD + "".join(
        f"| {', '.join(_shown(*option) for option in alike)} | {cells} |\n" for cells, alike in rows
    )


def _cells(option: Option) -> str:
    kind = f"{option.tensor}{' [n]' if option.dims == [-1] else ''}" or option.kind
    default = option.by_default
    if not default and option.default not in (None, ()):
        is_float = isinstance(option.default, float)
        default = f"{option.default:g}" if is_float else str(option.default).lower()
    most = "" if option.most is None else f"at most {option.most}"
    allowed = ", ".join(filter(None, (most, option.allowed)))
    return " | ".join((kind, default, allowed, option.says))


def _shown(name: str, option: Option) -> str:
    note = "" if option.tensor else "¹" if option.is_parameter else "²"
    called = f" (`{option.called}`)" if option.called else ""
    return f"`{name}`{note}{called}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
