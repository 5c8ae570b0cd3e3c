"""A tritonserver whose models are loaded while the machine's memory is watched, and loads on
it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from generator.errors import PerfError
from generator.server.process import TritonServer
from perf.load.http import Target
from perf.load.levels import LevelArguments
from perf.load.measure import Policy, Record
from perf.load.process import LevelError, http_command, records_of
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


def asked(server: TritonServer, target: Target, model: str, bodies: Sequence[str]) -> list[Record]:
    """Each body once, one after the other on one kept-open connection. Raises PerfError where one
    is not answered well.
    """
    policy = Policy(len(bodies), 0, _ANSWER_TIMEOUT_S * len(bodies), _ANSWER_TIMEOUT_S)
    records = sent(server, target, model, LevelArguments(1, 0, policy, bodies=bodies))
    for record in records:
        if record.problem:
            raise PerfError(f"{model} answered {record.problem.removeprefix('HTTP ')}")
    return records


def sent(
    server: TritonServer,
    target: Target,
    model: str,
    arguments: LevelArguments,
    on_answer: Callable[[int], object] = lambda _: None,
) -> list[Record]:
    """One level of a load. Raises PerfError where the load generator fails."""
    try:
        command = http_command(target, server.listen.http_port, model)
        return records_of(command, arguments, on_answer)
    except LevelError as error:
        raise PerfError(f"the load generator failed: {error}") from error
