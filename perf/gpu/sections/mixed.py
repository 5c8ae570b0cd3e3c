"""The mixed load in process: requests of different lengths come and go, and steps that hold prompts
run eagerly between those that replay a graph.
"""

from __future__ import annotations

import time
from itertools import islice

from text_generation.in_flight.engine import InFlightEngine
from text_generation.sequence.sampling_params import SamplingParams

from perf.gpu.results import Row
from perf.gpu.sections.engines import Clients, timed
from perf.load.requests import requests

_REQUESTS_PER_CLIENT, _MOST_REQUESTS = 8, 1024


def mixed_row(engine: InFlightEngine, clients: int, seed: int) -> Row:
    """Useful tokens/s of so many clients, and what share of the steps and of the time had prompts
    in it.
    """
    number = min(_REQUESTS_PER_CLIENT * clients, _MOST_REQUESTS)
    prompts = (
        (request.num_prompt_tokens, SamplingParams(max_tokens=request.max_tokens))
        for request in islice(requests(seed), number)
    )
    load = Clients(engine, prompts)
    with timed(engine) as runner:
        begun_s = time.perf_counter()
        load.run(min(clients, number))
        taken_s = time.perf_counter() - begun_s
    begun = runner.begun
    ends = [at for at, _ in begun[1:]] + [begun_s + taken_s]
    with_prompts = [end - at for (at, decodes), end in zip(begun, ends, strict=True) if not decodes]
    without = len(begun) - len(with_prompts)
    return {
        "clients": clients,
        "requests": number,
        "useful_tokens_per_s": load.num_tokens / taken_s,
        "steps_with_prompts_share": len(with_prompts) / len(begun),
        "time_with_prompts_share": sum(with_prompts) / taken_s,
        "step_with_prompts_ms": sum(with_prompts) / len(with_prompts) * 1e3,
        "other_step_ms": (taken_s - sum(with_prompts)) / without * 1e3 if without else None,
    }
