"""How a port of ``serve`` tells a model that the caller of a request has left: by a file, made when
the caller leaves and removed when the request is answered. The port names the request by a
parameter, whose value a file's name ends with.

Triton is not told: before 25.06 it dies of calls that are cancelled as they end, up to 26.08 of
streams that are.
"""

from __future__ import annotations

import os
import re

CALL = "hf-triton-call"
# In the environment of a server that `hf-triton serve` has started: what the files' paths begin
# with.
VARIABLE = "HF_TRITON_LEFT_CALLS"
# Whoever sends one can only end that request. Quotes within a value have backslashes before them.
_CALL = re.compile(rf'"{CALL}":\s*"([0-9a-f]{{32}})"')


def left_file(parameters: str) -> str | None:
    """The file that is there once the caller has left, of a request with these parameters, a JSON
    object; None where no port passed it on.
    """
    found = _CALL.search(parameters) if CALL in parameters else None
    prefix = os.environ.get(VARIABLE) if found else None
    return f"{prefix}{found[1]}" if found and prefix else None
