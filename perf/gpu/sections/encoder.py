"""How long encoders take for a batch, eager against CUDA graphs; without tokenizer or server."""

from __future__ import annotations

import torch
from hf_encoder.runners.graph_runner import GraphRunner, bucket_of
from hf_encoder.runners.padded_runner import PaddedRunner
from hf_encoder.runners.runner import (
    Runner,
    RunnerSetup,
    largest_difference,
    random_encodings,
    tolerance_of,
)

from perf.gpu.results import Context, Target
from perf.gpu.sections.ceilings import seconds
from perf.gpu.sections.shapes import make_bert

MODELS, LENGTHS, BATCH_SIZES = ("MiniLM", "BERT-base"), (16, 128, 512), (1, 8, 32)
_TIMES, _FOR_S = 100, 1.5


def measure(context: Context) -> None:
    """A row for each model, length and batch size."""
    device = torch.device(context.device)
    models, lengths, sizes = (
        (("tiny",), (16, 48), (1, 2)) if context.is_fake else (MODELS, LENGTHS, BATCH_SIZES)
    )
    for name in models:
        context.say(f"{name}: capturing graphs")
        model = make_bert(name, device)
        setup = RunnerSetup(model, device, "hidden", max_length=512, has_token_types=True)
        eager = PaddedRunner(setup)
        graphs = GraphRunner(setup, (lambda run: run) if device.type == "cpu" else None)
        for length in lengths:
            for size in sizes:
                _emit(context, name, eager, graphs, length, size)


def _emit(
    context: Context, name: str, eager: Runner, graphs: Runner, length: int, size: int
) -> None:
    eager_s, graphs_s = (_batch_s(runner, length, size) for runner in (eager, graphs))
    batch = random_encodings(eager.setup, [length - at % 3 for at in range(size)])
    difference = largest_difference(graphs.forward(batch), eager.forward(batch))
    is_equal = difference <= tolerance_of(eager.setup.model)
    is_captured = bucket_of(size, length, graphs.setup.max_length) is not None
    context.emit(
        "a batch, from token ids to hidden states in bfloat16",
        {
            "model": name,
            "tokens": length,
            "texts": size,
            "eager_ms": eager_s * 1e3,
            "graphs_ms": graphs_s * 1e3 if is_captured else None,
            "times_faster": eager_s / graphs_s if is_captured else None,
            "texts_per_s": size / min(eager_s, graphs_s),
            "difference": difference,
        },
        Target("what it computes eagerly", float(is_equal), 1.0, is_exact=True),
    )


def _batch_s(runner: Runner, length: int, size: int) -> float:
    batch = random_encodings(runner.setup, [length] * size)
    return seconds(lambda: runner.forward(batch), runner.setup.device, _TIMES, _FOR_S)
