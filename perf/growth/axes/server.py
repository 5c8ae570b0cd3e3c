"""A tritonserver whose models are loaded while the machine's memory is watched, and single requests
to it, one after the other.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from generator.errors import PerfError
from generator.server.process import TritonServer
from perf.load.targets import tensor
from perf.serving import free_listen
from perf.usage import available_gib

KEPT_FREE_GIB = 1.0
_LOAD_TIMEOUT_S, _ANSWER_TIMEOUT_S = 1800.0, 300.0
_ENDS_WITHIN_S = 2.0


@contextmanager
def served(repository: Path, models: Sequence[str]) -> Iterator[TritonServer]:
    """The server, all models ready. It is killed where the machine gets short of memory.

    Raises PerfError then, and where it dies inside the block; ServerError where a model fails.
    """
    # Of its log only the end is told, where it dies.
    with TritonServer(repository, free_listen(), write_log=lambda _: None) as server:
        _load(server, models)
        try:
            yield server
        except PerfError as error:
            deadline = time.monotonic() + _ENDS_WITHIN_S
            while server.exit_code() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            if server.exit_code() is None:
                raise
            raise PerfError(server.exit_message("the server died")) from error


def _load(server: TritonServer, models: Sequence[str]) -> None:
    server.loader.begin(models)
    deadline = time.monotonic() + _LOAD_TIMEOUT_S
    while left := server.loader.num_loading:
        outcome = server.next_outcome(timeout_s=0.5)
        if outcome and outcome.failure:
            raise PerfError(f"model '{outcome.model}' failed to load: {outcome.failure}")
        if (available := available_gib()) < KEPT_FREE_GIB / 2:
            raise PerfError(
                f"the machine has only {available:.1f} GiB of memory left, and {left} models are "
                "not loaded yet: stopped before it swaps"
            )
        if time.monotonic() > deadline:
            raise PerfError(f"models are still loading after {_LOAD_TIMEOUT_S:.0f} s")


def body(text: str, max_tokens: int = 0) -> str:
    """A prompt, and for a text-generation model how many tokens to answer."""
    inputs = [tensor("text_input", "BYTES", text)]
    if max_tokens:
        inputs.append(tensor("max_tokens", "INT32", max_tokens))
    return json.dumps({"inputs": inputs})


def latency_s(port: int, model: str, bodies: Sequence[str]) -> float:
    """The median over requests with these bodies, on one kept-open connection. Raises PerfError."""
    with _connected(port) as connection:
        return statistics.median(
            _asked(connection, f"{model}/infer", body)[-1][0] for body in bodies
        )


def streamed(port: int, model: str, text: str, max_tokens: int) -> tuple[float, float]:
    """When the first and the last piece of one prompt's answer came over ``/generate_stream``, in
    seconds from when it was asked for. Raises PerfError.
    """
    body = json.dumps({"text_input": text, "max_tokens": max_tokens, "stream": True})
    with _connected(port) as connection:
        pieces = _asked(connection, f"{model}/generate_stream", body)
    return pieces[0][0], pieces[-1][0]


@contextmanager
def _connected(port: int) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_TIMEOUT_S)
    try:
        yield connection
    except (http.client.HTTPException, OSError) as error:
        why = str(error) or type(error).__name__
        raise PerfError(f"the server does not answer: {why}") from error
    finally:
        connection.close()


def _asked(
    connection: http.client.HTTPConnection, path: str, body: str
) -> list[tuple[float, bytes]]:
    """The lines of an answer, each with the seconds after which it came."""
    begin = time.perf_counter()
    connection.request("POST", f"/v2/models/{path}", body)
    response = connection.getresponse()
    lines = [(time.perf_counter() - begin, line) for line in response if line.strip()]
    response.read()  # its end, without which the connection takes no other request
    last = lines[-1][1] if lines else b""
    if response.status != 200 or not lines or b'"error"' in last:
        model, said = path.partition("/")[0], last[:200].decode(errors="replace")
        raise PerfError(f"{model} answered {response.status}: {said}")
    return lines
