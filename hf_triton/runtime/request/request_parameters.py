"""The parameters that Triton, the ports of ``serve`` and clients add to a request: the call that a
port has passed on, the caller, the salt of cached results, a stream's empty last response, and a
question for the tokenizer.

A port tells a model by a file that the caller of a request has left: it makes the file when the
caller leaves and removes it when the request is answered. The file's name ends with the name that
the call has; a request that is sent again says so there. Triton is not told: before 25.06 it dies
of calls that are cancelled as they end, up to 26.08 of streams that are.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from hf_triton.tracing.trace import Trace
from hf_triton.tracing.triton import TRACEPARENT

from ..errors import RequestError

# A client asks Triton for an empty last response, of which Triton tells a model nothing: the proxy
# of the gRPC port says it. pytriton's clients drop the response that is marked as the last.
EMPTY_FINAL = "hf-triton-empty-final"
TOKENIZER_QUESTION = "tokenizer"  # asks a model's tokenizer instead of the model
CALL = "hf-triton-call"
CALLER = "hf-triton-caller"
CACHE_SALT = "cache_salt"
MAX_SALT_CHARACTERS = 256
# In the environment of a server that `hf-triton serve` has started: what the files' paths begin
# with.
VARIABLE = "HF_TRITON_LEFT_CALLS"
# There too: the pipe in which models tell a port what requests have used, if it counts that.
USES_VARIABLE = "HF_TRITON_USES"
USES = ("prompt_tokens", "generated_tokens", "images", "sound_seconds")
_MOST = 999_999_999
# A caller that sends one can only end that request. Quotes within a value are escaped.
_NAME, _NUMBER = "[0-9a-f]{32}", r"\d{1,9}"
_VALUE = rf"({_NAME})(?:-({_NUMBER})-({_NUMBER})-({_NAME})?)?"
_CALL = re.compile(rf'"{CALL}":\s*"({_VALUE})(?:\+({TRACEPARENT}))?"')


class Call(NamedTuple):
    """A request that a port has passed on. ``text`` is the parameter's value; the ``left_file`` is
    there once the caller has left, and a stream has a ``journal``. Of one that is sent again,
    ``num_responses`` are what its caller has, and ``waited_ms`` is how long it has waited. A traced
    one has a ``trace``.
    """

    text: str
    left_file: str
    num_responses: int = 0
    waited_ms: int = 0
    journal: str = ""
    trace: Trace | None = None

    def tell_use(self, **numbers: float) -> None:
        """Tells the port what the request has used, by the names of USES; before the last response,
        after which the port forgets the call.
        """
        if self.trace:
            self.trace.use(**numbers)
        if (pipe := _pipe(os.environ.get(USES_VARIABLE, ""))) is not None:
            told = (self.text[:32], *(str(numbers.get(one, 0)) for one in USES))
            with contextlib.suppress(OSError):  # it is full: the port hangs
                os.write(pipe, f"{' '.join(told)}\n".encode())


@functools.cache
def _pipe(path: str) -> int | None:
    with contextlib.suppress(OSError):
        # Open for reading too: a write never fails because the port is started again.
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    return None


def call_in(parameters: str, traceparent: str = "") -> Call | None:
    """The call in these parameters, a JSON object; None where no port passed the request on. With a
    ``traceparent``, there or of Triton, it is traced.
    """
    found = _CALL.search(parameters) if CALL in parameters else None
    prefix = os.environ.get(VARIABLE) if found else None
    if not (found and prefix):
        return None
    text, name, num_responses, waited_ms, journal, passed_on = found.groups("")
    journal = journal and journal_file(prefix, journal)
    call = Call(text, f"{prefix}{name}", int(num_responses or 0), int(waited_ms or 0), journal)
    if traceparent := traceparent or passed_on:
        return call._replace(text=f"{text}+{traceparent}", trace=Trace(traceparent))
    return call


def call_text(name: str, num_responses: int, waited_s: float, journal: str) -> str:
    """Values for one request have the same length; ``journal`` is empty without a stream."""
    waited_ms = min(int(1000 * waited_s), _MOST)
    return f"{name}-{min(num_responses, _MOST):09}-{waited_ms:09}-{journal}"


def journal_file(prefix: str, name: str) -> str:
    return f"{prefix}{name}.told"


def read_parameters(text: str) -> dict[str, Any]:
    """A request's parameters from their JSON object, without the call that it came with."""
    # Nearly all have none; json.loads makes a decoder of its own for each call with a hook.
    found: dict[str, Any] = {} if text in ("", "{}") else _DECODER.decode(text)
    return found


def _with_one_caller(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Takes all values under the caller's name, in any case, as the caller: a client that adds one
    becomes no other caller by it. HTTP headers arrive spelt as they were sent.
    """
    callers = [value for name, value in pairs if name.lower() == CALLER]
    values = {name: value for name, value in pairs if name.lower() not in (CALLER, CALL)}
    if not callers:
        return values
    return {**values, CALLER: callers if len(callers) > 1 else callers[0]}


_DECODER = json.JSONDecoder(object_pairs_hook=_with_one_caller)


def salt_of(parameter_values: Mapping[str, Any]) -> str | None:
    """Returns a digest; requests with the same one share results. It is made of the caller, from a
    header that Triton passes on as a parameter, and of ``cache_salt``, as in vLLM; None where a
    request has neither. Raises RequestError: ``cache_salt`` is no text of an allowed length.
    """
    caller, given = parameter_values.get(CALLER), parameter_values.get(CACHE_SALT)
    if given is not None and not (isinstance(given, str) and 0 < len(given) <= MAX_SALT_CHARACTERS):
        # Does not quote the salt: with it others' use could be probed.
        got = "a value of another type"
        if isinstance(given, str):
            got = f"{len(given)} characters" if given else "an empty text"
        allowed = f"a text of 1 to {MAX_SALT_CHARACTERS} characters"
        raise RequestError(f"{CACHE_SALT}: got {got}, allowed: {allowed}")
    if caller is None and given is None:
        return None
    parts = json.dumps([caller, given])
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()
