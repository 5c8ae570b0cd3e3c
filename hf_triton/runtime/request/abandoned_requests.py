"""How a port of ``serve`` tells a model that the caller of a request has left: by a file, made when
the caller leaves and removed when the request is answered. The port names the request by a
parameter, whose value a file's name ends with; one that it sends again says so there.

Triton is not told: before 25.06 it dies of calls that are cancelled as they end, up to 26.08 of
streams that are.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

CALL = "hf-triton-call"
# In the environment of a server that `hf-triton serve` has started: what the files' paths begin
# with.
VARIABLE = "HF_TRITON_LEFT_CALLS"
_MOST = 999_999_999
# Whoever sends one can only end that request. Quotes within a value have backslashes before them.
_NAME, _NUMBER = "[0-9a-f]{32}", r"\d{1,9}"
_VALUE = rf"({_NAME})(?:-({_NUMBER})-({_NUMBER})-({_NAME})?)?"
_CALL = re.compile(rf'"{CALL}":\s*"({_VALUE})"')


class Call(NamedTuple):
    """A request that a port has passed on. ``text`` is the parameter's value; the ``left_file`` is
    there once the caller has left, and a stream has a ``journal``. Of one that is sent again,
    ``num_responses`` are what its caller has, and ``waited_ms`` is how long it has waited.
    """

    text: str
    left_file: str
    num_responses: int = 0
    waited_ms: int = 0
    journal: str = ""


def call_in(parameters: str) -> Call | None:
    """The call in these parameters, a JSON object; None where no port passed the request on."""
    found = _CALL.search(parameters) if CALL in parameters else None
    prefix = os.environ.get(VARIABLE) if found else None
    if not (found and prefix):
        return None
    text, name, num_responses, waited_ms, journal = found.groups("")
    return Call(
        text,
        f"{prefix}{name}",
        int(num_responses or 0),
        int(waited_ms or 0),
        journal and journal_file(prefix, journal),
    )


def call_text(name: str, num_responses: int, waited_s: float, journal: str) -> str:
    """The parameter's value for a request of that name; ``journal`` names a stream's, "" of a whole
    answer. All values for one are of the same length.
    """
    waited_ms = min(int(1000 * waited_s), _MOST)
    return f"{name}-{min(num_responses, _MOST):09}-{waited_ms:09}-{journal}"


def journal_file(prefix: str, name: str) -> str:
    return f"{prefix}{name}.told"
