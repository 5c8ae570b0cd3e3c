"""What steps launch, copy and wait for, counted on a GPU that is not there."""

from __future__ import annotations

from typing import Any

from perf.gpu.fake.engine import FakeEngine, engine_on
from perf.gpu.fake.events import Log
from perf.gpu.fake.gpu import FakeGpu
from perf.gpu.fake.models import LLAMA_3_8B, causal_on_gpu
from perf.gpu.results import Context, Target

CARDS = {"H100": (9, 0), "A10": (8, 6)}  # compute capability
_SAMPLED = {"temperature": 0.7, "seed": 1}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": _SAMPLED,
    "top_k, top_p": {**_SAMPLED, "top_k": 40, "top_p": 0.9},
    "min_p": {**_SAMPLED, "min_p": 0.1},
    "penalties": {"repetition_penalty": 1.1, "presence_penalty": 0.1},
    "bad words": {"bad_token_ids": ((3,), (4, 5))},
    "min_tokens": {"min_tokens": 30, "stop_token_ids": (9,)},
    "logprobs": {"num_logprobs": 5},
}
_ROOM: dict[str, Any] = {"max_num_seqs": len(WAYS), "max_model_len": 256}
_FEW_LAYERS, _MORE_LAYERS = 2, 4
_MOST_KERNELS = 12


def measure(context: Context) -> None:
    """A captured step's kernels for each card, then what a step of each way of sampling takes."""
    for card, capability in CARDS.items():
        few, more = (_kernels(capability, layers) for layers in (_FEW_LAYERS, _MORE_LAYERS))
        a_layer = (more[1] - few[1]) / (_MORE_LAYERS - _FEW_LAYERS)
        is_met = float(a_layer <= _MOST_KERNELS and more[0] > 0)
        context.emit(
            "a decode step of a Llama",
            {
                "card": card,
                "graphs": more[0],
                "kernels_a_layer": round(a_layer),
                "other_kernels": round(few[1] - a_layer * _FEW_LAYERS),
            },
            Target(
                f"captured, at most {_MOST_KERNELS} kernels a layer", is_met, 1.0, is_exact=True
            ),
        )
    with FakeGpu() as gpu, engine_on(gpu, _llama(_FEW_LAYERS), **_ROOM) as fake:
        for way, params in WAYS.items():
            log = fake.decode_step(*(fake.sequence(10, **params) for _ in range(3)))
            _emit(context, f"3 sequences, {way}", log)
        every = [fake.sequence(10, **params) for params in WAYS.values()]
        _emit(context, "one sequence of each way", fake.decode_step(*every))
        _emit(context, "2 sequences beside 2 prompts", _with_prompts(fake))


def _llama(layers: int) -> Any:
    config: dict[str, Any] = {**LLAMA_3_8B, "num_hidden_layers": layers}
    return causal_on_gpu("llama", **config)


def _kernels(capability: tuple[int, int], layers: int) -> tuple[int, int]:
    """How many graphs are captured, and the kernels of a decode step, replayed or not."""
    with FakeGpu(capability) as gpu, engine_on(gpu, _llama(layers), **_ROOM) as fake:
        captures = list(gpu.captures)
        log = fake.decode_step(*(fake.sequence(10) for _ in range(3)))
        replayed = len(captures[-1].kernels) if log.count("replay") else 0
        return len(captures), replayed + log.count("kernel")


def _with_prompts(fake: FakeEngine) -> Log:
    running, joining = ([fake.sequence(10), fake.sequence(25)] for _ in range(2))
    fake.step(*running)
    fake.step()
    log = fake.step(*joining)
    fake.end(*running, *joining)
    return log


def _emit(context: Context, step: str, log: Log) -> None:
    copies, waits = log.count("h2d"), log.count("wait")
    context.emit(
        "copies and waits of a step",
        {
            "step": step,
            "copies_in": copies,
            "copies_out": log.count("d2h"),
            "waits": waits,
            "graphs_replayed": log.count("replay"),
            "kernels_beside": log.count("kernel"),
        },
        Target("one copy in, one wait", float(copies <= 1 and waits <= 1), 1.0, is_exact=True),
    )
