"""The label that log lines and errors begin with, as Triton's own do: ``[request id: 7] ``.

A client chooses its request's id, so it is shown cut, and without characters that could begin a new
line of the log.
"""

from __future__ import annotations

MAX_SHOWN = 64
_LABEL = "[request id: "
_ENDS_LABEL = frozenset('"\\]')


def labelled(request_id: str, text: str) -> str:
    """``text`` after the request's label; unchanged if the request has no id or the text has a
    label.
    """
    if not request_id or text.startswith(_LABEL):
        return text
    return f"{_LABEL}{shown(request_id)}] {text}"


def shown(request_id: str) -> str:
    """The id on one line, cut to MAX_SHOWN characters, unprintable characters escaped."""
    cut = request_id if len(request_id) <= MAX_SHOWN else f"{request_id[: MAX_SHOWN - 1]}…"
    return "".join(map(_shown, cut))


def _shown(character: str) -> str:
    if character.isprintable() and character not in _ENDS_LABEL:
        return character
    return character.encode("unicode_escape").decode() if not character.isprintable() else "?"
