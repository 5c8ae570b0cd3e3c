"""Single requests to a server, one after the other, and how long each takes."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from generator.errors import PerfError
from perf.load.targets import tensor

_TIMEOUT_S = 300.0


def latency_s(port: int, model: str, bodies: Sequence[str]) -> float:
    """The median over requests with these bodies, on one kept-open connection. Raises PerfError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        return statistics.median(_ask(connection, model, body) for body in bodies)
    except (http.client.HTTPException, OSError) as error:
        raise _gone(error) from error
    finally:
        connection.close()


def _ask(connection: http.client.HTTPConnection, model: str, body: str) -> float:
    begin = time.perf_counter()
    connection.request("POST", f"/v2/models/{model}/infer", body)
    response = connection.getresponse()
    answer = response.read()
    taken = time.perf_counter() - begin
    if response.status != 200:
        raise PerfError(
            f"{model} answered {response.status}: {answer[:200].decode(errors='replace')}"
        )
    return taken


@dataclass(frozen=True)
class Streamed:
    """When the first and the last piece of an answer came, from when it was asked for."""

    first_s: float
    last_s: float


def streamed(port: int, model: str, text: str, max_tokens: int) -> Streamed:
    """One prompt's answer over ``/generate_stream``. Raises PerfError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    asked = {"text_input": text, "max_tokens": max_tokens, "stream": True}
    try:
        begin = time.perf_counter()
        connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps(asked))
        response = connection.getresponse()
        pieces = [(time.perf_counter() - begin, line) for line in response if line.strip()]
    except (http.client.HTTPException, OSError) as error:
        raise _gone(error) from error
    finally:
        connection.close()
    if response.status != 200 or not pieces or b'"error"' in pieces[-1][1]:
        said = pieces[-1][1][:200].decode(errors="replace") if pieces else ""
        raise PerfError(f"{model} answered {response.status}: {said}")
    return Streamed(pieces[0][0], pieces[-1][0])


def _gone(error: Exception) -> PerfError:
    return PerfError(f"the server does not answer: {str(error) or type(error).__name__}")


def body(text: str, max_tokens: int = 0) -> str:
    """A prompt, and for a text-generation model how many tokens to answer."""
    inputs = [tensor("text_input", "BYTES", text)]
    if max_tokens:
        inputs.append(tensor("max_tokens", "INT32", max_tokens))
    return json.dumps({"inputs": inputs})
