"""Random requests from many callers at once, some malformed and some abandoned: every answer is
right or refused, nothing runs for nobody afterwards, and no memory is lost.

``SOAK_REQUESTS=10000`` makes it long; only then memory has settled enough to be compared.
"""

from __future__ import annotations

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from hf_triton.tritonserver.process import TritonServer
from tests.scenarios.endpoint import Endpoint, Model
from tests.scenarios.reference import Reference
from tests.scenarios.served_models import BATCHED, is_batched
from tests.scenarios.triton_endpoints import GrpcEndpoint, HttpEndpoint
from tests.served.test_load import (
    Asked,
    answered,
    ask_generate,
    ask_infer,
    ask_rows,
    ask_stream,
    cancel_call,
    leave_stream,
    prompts,
    served,
)
from tests.support.one_server import OneServer
from tests.support.triton import Triton, eventually

NUM_REQUESTS = int(os.environ.get("SOAK_REQUESTS", "200"))
SEED = int(os.environ.get("SOAK_SEED", "0"))
NUM_CLIENTS, LEAST_FOR_MEMORY = 24, 5000
MODELS = ("demo", "batched", "padded")
CASES = prompts(40)
BAD: tuple[dict[str, Any], ...] = (
    *({"max_tokens": value} for value in (-1, 10**40, "three", [3], 2.5, 1024)),
    *({"temperature": value} for value in (-1.0, float("nan"), "warm", 10**400)),
    *({"top_p": 1.5}, {"top_k": -2}, {"repetition_penalty": 0.0}, {"seed": 2**64}, {"n": 129}),
    *({"stop": [3]}, {"logit_bias": {"a": 1}}, {"regex": "(("}, {"max_tokns": 3}),
)
BAD_TEXTS = ("{", "[1]", "null", "[" * 5000, '{"n": 1, "n": 1}', '{"stop": "\\ud800"}')


def num_held(triton: Triton) -> float:
    """Sequences that run or wait, as ``/metrics`` tells once a second."""
    states = ("hf_triton_running", "hf_triton_waiting")
    return sum(triton.metric(state, model=name) for state in states for name in MODELS)


class Soak:
    """Remembers what each seeded case was answered first: every other answer must be the same."""

    def __init__(self, triton: Triton, reference: Reference) -> None:
        self._triton, self._seeded = triton, dict[tuple[int, int], str]()
        self._expected = [case.expected(reference) for case in CASES]

    def problems(self, first: int, last: int) -> list[str]:
        """The faults in the answers to the requests of these numbers."""
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            return [one for one in pool.map(self._problem, range(first, last)) if one]

    def _problem(self, number: int) -> str:
        draw = random.Random(f"{SEED} {number}")
        endpoint = draw.choice((HttpEndpoint, GrpcEndpoint))(self._triton, timeout_s=120)
        name, case = draw.choices(MODELS, (5, 3, 2))[0], draw.randrange(len(CASES))
        kind = draw.choices((self._right, self._seeds, self._malformed, self._left), (6, 2, 1, 1))
        try:
            kind[0](draw, endpoint, name, case)
        except Exception as error:  # noqa: BLE001
            return f"request {number} of {name}: {error!r}"
        return ""

    def _right(self, draw: random.Random, endpoint: Endpoint, name: str, case: int) -> None:
        ways = (ask_infer, ask_stream, ask_generate, *[ask_rows] * (name in BATCHED))
        text = draw.choice(ways)(served(endpoint, name), CASES[case])
        assert text == self._expected[case]

    def _seeds(self, draw: random.Random, endpoint: Endpoint, name: str, case: int) -> None:
        seed = draw.randrange(4)
        how = {"seed": seed, "temperature": 1.0, "max_tokens": 12}
        model = served(endpoint, name)
        text = answered(model.ask("tensors", CASES[case % 5].prompt, **how)).text()
        assert text == self._seeded.setdefault((case % 5, seed), text)

    def _malformed(self, draw: random.Random, endpoint: Endpoint, name: str, case: int) -> None:
        wrong = draw.choice((json.dumps(draw.choice(BAD)), draw.choice(BAD_TEXTS)))
        model = served(endpoint, name)
        reply = model.ask("tensors", CASES[case].prompt, sampling_parameters=wrong)
        assert reply.status == 400, (wrong, reply)
        assert "internal error" not in reply.error, (wrong, reply)

    def _left(self, draw: random.Random, endpoint: Endpoint, name: str, case: int) -> None:
        asked = Asked(CASES[case].prompt, 200, echo=False)
        draw.choice((leave_stream, cancel_call))(served(endpoint, name), asked)


def fill(triton: Triton) -> None:
    """Takes all memory of the engines that is given out as it is touched."""
    how = {"max_tokens": 1016, "min_tokens": 1016, "temperature": 1.0}
    for name, n in zip(MODELS, (128, 128, 32), strict=True):
        model = Model(GrpcEndpoint(triton, timeout_s=600), name, batched=is_batched(name))
        answered(model.ask("tensors", "Once", n=n, **how))


def memory_mib(server: TritonServer) -> dict[str, float]:
    """By model, ``tritonserver``, and ``/dev/shm`` for the regions of this server."""
    held = {}
    for process in psutil.Process(server.pid).children(recursive=True):
        command = process.cmdline()
        program = Path(command[0]).name if command else ""
        mib = process.memory_info().rss / 2**20
        if program == "triton_python_backend_stub":
            held[Path(command[1]).parts[-3]] = mib  # .../demo/1/model.py
        elif program == "tritonserver":
            held[program] = mib
    regions = Path("/dev/shm").glob(f"{server.shared_memory_prefix}*")
    return {**held, "/dev/shm": sum(path.stat().st_blocks * 512 for path in regions) / 2**20}


def test_random_requests_are_answered_right_or_refused(
    one_server: OneServer, reference: Reference
) -> None:
    triton = one_server.with_models(*MODELS)
    soak, measures_memory = Soak(triton, reference), NUM_REQUESTS >= LEAST_FOR_MEMORY
    slots = "hf_triton_kv_slots_used"
    if measures_memory:
        fill(triton)
    for first, last in ((0, NUM_REQUESTS // 3), (NUM_REQUESTS // 3, NUM_REQUESTS)):
        before = memory_mib(triton.server)
        assert soak.problems(first, last) == []
        assert eventually(lambda: not num_held(triton))
        assert eventually(lambda: not any(triton.metric(slots, model=name) for name in MODELS[:2]))
    grown = {
        name: (before.get(name, 0.0), mib)
        for name, mib in memory_mib(triton.server).items()
        if mib > max(1.05 * before.get(name, 0.0), before.get(name, 0.0) + 4)
    }
    assert not (measures_memory and grown), "MiB"
