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
_CALL = re.compile(rf'"{CALL}":\s*"(([0-9a-f]{{32}})(?:-(\d{{1,9}})-(\d{{1,9}}))?)"')


class Call(NamedTuple):
    """A request that a port has passed on. ``text`` is the parameter's value, ``file`` what the
    paths of the request's files begin with; of one that is sent again, ``num_responses`` that its
    caller has already, and the milliseconds that it has waited.
    """

    text: str
    file: str
    num_responses: int = 0
    waited_ms: int = 0


def call_in(parameters: str) -> Call | None:
    """That of a request with these parameters, a JSON object; None where no port passed it on."""
    found = _CALL.search(parameters) if CALL in parameters else None
    prefix = os.environ.get(VARIABLE) if found else None
    if not (found and prefix):
        return None
    return Call(found[1], f"{prefix}{found[2]}", int(found[3] or 0), int(found[4] or 0))


def text_again(name: str, num_responses: int, waited_s: float) -> str:
    """The parameter's value for a request of that name that is sent again."""
    return f"{name}-{min(num_responses, _MOST)}-{min(int(1000 * waited_s), _MOST)}"


def left_file(parameters: str) -> str | None:
    """The file that is there once the caller has left, of a request with these parameters."""
    call = call_in(parameters)
    return call and call.file
