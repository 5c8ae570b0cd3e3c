"""How texts name the request that they are about: as Triton's own errors do, ``[request id: 7] ``.

A client chooses its request's id, so what is shown of it can neither be long nor begin a new line.
"""

from __future__ import annotations

MAX_SHOWN = 64
_LABEL = "[request id: "
_ENDS_LABEL = frozenset('"\\]')


def labelled(request_id: str, text: str) -> str:
    """``text`` behind the request's id; as it is where the request has none, or it has the label
    already.
    """
    if not request_id or text.startswith(_LABEL):
        return text
    return f"{_LABEL}{shown(request_id)}] {text}"


def shown(request_id: str) -> str:
    """The id on one line, cut to MAX_SHOWN characters, without what is not to be printed."""
    cut = request_id if len(request_id) <= MAX_SHOWN else f"{request_id[: MAX_SHOWN - 1]}…"
    return "".join(map(_shown, cut))


def _shown(character: str) -> str:
    if character.isprintable() and character not in _ENDS_LABEL:
        return character
    return character.encode("unicode_escape").decode() if not character.isprintable() else "?"
