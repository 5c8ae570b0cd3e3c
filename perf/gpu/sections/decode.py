"""Tokens/s of our in-flight engine, many sequences at once, beside what reading the weights and the
keys and values takes at the measured bandwidth.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from text_generation.in_flight.engine import InFlightEngine
from text_generation.kv.kv_cache import layer_shapes
from text_generation.sequence.sampling_params import SamplingParams

from perf.gpu.results import Context, Row, Target
from perf.gpu.sections.ceilings import bandwidths, free_gib
from perf.gpu.sections.engines import Clients, engine_on, generate, graphed_runner, timed
from perf.gpu.sections.kernels import kernels_of
from perf.gpu.sections.shapes import bytes_per_step, make_llama
from perf.load.requests import requests

SHARE_TARGETS = {("llama-8b", 1): 0.70}  # of the limit, by shape and sequences
GRAPHS, EAGER = "CUDA graphs", "eager"
_SPARE_GIB = {"llama-8b": 24.0, "llama-1b": 12.0, "tiny": 0.1}  # cache, buffers, graphs

_REQUESTS_PER_CLIENT, _MOST_REQUESTS = 8, 1024  # of the mixed load


@dataclass(frozen=True)
class Load:
    """Sequences that are started together, their prompt and output in tokens."""

    name: str
    sequences: tuple[int, ...]
    num_prompt_tokens: int
    num_output_tokens: int
    max_model_len: int
    is_mixed: bool = False  # whether requests of all lengths are sent, too


SHORT = Load("short", (1, 8, 64, 256), 64, 160, 512, is_mixed=True)
LONG = Load("long", (1, 8, 64), 1400, 200, 2048)  # 90 steps pass until all 64 decode
TINY = (Load("short", (1, 4), 6, 12, 200, is_mixed=True), Load("long", (2,), 300, 8, 400))


@dataclass(frozen=True)
class Limit:
    """What a decode step has to read, and how fast that goes."""

    weight_bytes: int
    kv_bytes_per_token: int
    bytes_per_s: float

    def step_s(self, sequences: int, context: float) -> float:
        """Seconds of a step, sequences of ``context`` tokens on average."""
        read = self.weight_bytes + sequences * context * self.kv_bytes_per_token
        return read / self.bytes_per_s


def measure(context: Context) -> None:
    """The short load, the long one, then where a step's time goes."""
    device = torch.device(context.device)
    bytes_per_s = max(bandwidths(device, tiny=context.is_fake).values())
    model = make_llama(context.shape, device, _SPARE_GIB[context.shape], context.seed)
    per_token = sum(shape.bytes_per_token for shape in layer_shapes(model, device))
    limit = Limit(bytes_per_step(model), per_token, bytes_per_s)
    context.emit(
        "model",
        {
            "model": context.shape,
            "parameters_b": sum(weight.numel() for weight in model.parameters()) / 1e9,
            "read_per_step_gb": limit.weight_bytes / 1e9,
            "kv_kib_per_token": per_token / 1024,
            "bandwidth_gb_per_s": bytes_per_s / 1e9,
        },
    )
    for load in TINY if context.is_fake else (SHORT, LONG):
        _measure_load(context, model, device, load, limit)


def _measure_load(
    context: Context, model: Any, device: torch.device, load: Load, limit: Limit
) -> None:
    free = free_gib(device)  # what the engine before this one had is given back
    context.say(f"{load.name} load: {free:.1f} GiB free; starting the engine, capturing graphs")
    options = {"max_num_seqs": max(load.sequences), "max_model_len": load.max_model_len}
    with engine_on(model, device, max_num_batched_tokens=1024, **options) as engine:
        graphed = graphed_runner(engine)
        context.say(f"{graphed.num_graphs} graphs captured")
        ways = [(GRAPHS, graphed), (EAGER, graphed.inner)][not graphed.num_graphs :]
        for sequences in load.sequences:
            for name, runner in ways:
                step_s = _step_s(engine, runner, load, sequences)
                _emit(context, load, limit, sequences, name, step_s)
        if load.is_mixed:
            engine.runner = graphed
            for clients in load.sequences:
                mixed_row(engine, clients, context.seed + 1)  # captures what it needs
                context.emit("mixed load, in process", mixed_row(engine, clients, context.seed))
    for sequences in dict.fromkeys((load.sequences[0], load.sequences[-1])):
        for name, runner in ways:
            for row in kernels_of(runner, sequences, load.num_prompt_tokens, device):
                context.emit(
                    f"kernels of a step, {load.name} load",
                    {"sequences": sequences, "run_as": name, **row},
                )
    if not graphed.num_graphs:
        raise RuntimeError("the model could not be captured: see the warning above")


def _step_s(engine: InFlightEngine, runner: Any, load: Load, sequences: int) -> float:
    """Seconds from step to step, through the engine's own thread; once before, unmeasured, for
    graphs that are captured when first needed.
    """
    params = SamplingParams(max_tokens=load.num_output_tokens)
    engine.runner = runner
    generate(engine, sequences, load.num_prompt_tokens, params)
    with timed(engine) as steps:
        generate(engine, sequences, load.num_prompt_tokens, params)
    return steps.step_s(sequences)


def _emit(
    context: Context, load: Load, limit: Limit, sequences: int, run_as: str, step_s: float
) -> None:
    mean_context = load.num_prompt_tokens + load.num_output_tokens / 2
    limit_s = limit.step_s(sequences, mean_context)
    share = limit_s / step_s
    least = SHARE_TARGETS.get((context.shape, sequences))
    target = None
    if least is not None and run_as == GRAPHS and load.name == "short":
        target = Target(f"at least {least:.0%} of the limit", share, least)
    row: Row = {
        "load": load.name,
        "mean_context": int(mean_context),
        "sequences": sequences,
        "run_as": run_as,
        "tokens_per_s": sequences / step_s,
        "step_ms": step_s * 1e3,
        "limit_tokens_per_s": sequences / limit_s,
        "limit_share": share,
    }
    context.emit("decoding", row, target)


def mixed_row(engine: InFlightEngine, clients: int, seed: int) -> Row:
    """Useful tokens/s of so many clients whose requests differ in length, and what share of the
    steps and of the time had prompts in it: those run eagerly between steps that replay a graph.
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
