"""Whether what an engine generates here are the tokens of the CPU: of transformers' own
``generate``, in float32, of the same tiny model with the same random weights.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from perf.lab.gpu.engines import Asked, answers, engine_on
from perf.lab.gpu.models import VOCABULARY
from perf.lab.gpu.told import Told

ROOM = {"max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 64, "kv_cache_gib": 0.1}
_LENGTHS = (3, 40, 150, 1, 70, 33, 40, 17)  # some longer than a step, and than a window
# Of the logits' range, as where runners are tried.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 8e-2}


@dataclass(frozen=True)
class Reference:
    """The CPU's greedy tokens of a prompt; ``logits`` (tokens, vocabulary): what else was near."""

    tokens: tuple[int, ...]
    logits: torch.Tensor

    def differs(self, got: Sequence[int], tolerance: float) -> tuple[int, bool]:
        """How many tokens are alike, and whether the next one differs by more than rounding: what
        follows a near tie is another text.
        """
        for at, (want, have) in enumerate(zip(self.tokens, got, strict=False)):
            if want != have:
                row = self.logits[at]
                return at, bool(row[want] - row[have] > tolerance * (row.max() - row.min()))
        return len(self.tokens), len(got) != len(self.tokens)


def load(adapters: Sequence[str | None] = (None,)) -> list[Asked]:
    """Prompts shorter and longer than a step, two of which begin alike; adapters in turn."""
    draw = random.Random(1)
    prompts = [[draw.randrange(1, VOCABULARY) for _ in range(length)] for length in _LENGTHS]
    prompts[6] = prompts[1][:36] + prompts[6][36:]
    return [
        Asked(prompt, draw.choice((2, 9, 20)), adapters[at % len(adapters)])
        for at, prompt in enumerate(prompts)
    ]


@torch.inference_mode()
def references(model: Any, asked: Iterable[Asked]) -> list[Reference]:
    """``generate``'s tokens of each prompt alone, on the model's own device."""
    found = []
    for one in asked:
        prompt = torch.tensor([one.prompt], device=model.device)
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=one.max_tokens,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = output.sequences[0, len(one.prompt) :].tolist()
        found.append(Reference(tuple(tokens), torch.cat(output.logits).float().cpu()))
    return found


def run_case(
    row: dict[str, Any],
    told: Told,
    model: Any,
    asked: Sequence[Asked],
    expected: Sequence[Reference],
    tolerance: float | None = None,
    **options: Any,
) -> None:
    """Fills in how an engine's tokens, of a model on its device, are beside those of the CPU;
    twice, for what it kept of the first time.
    """
    with engine_on(model, told.device, **{**ROOM, **options}) as engine:
        row["run_by"] = engine.runner.name
        got = [*answers(engine, asked), *answers(engine, asked)]
        row["preempted"] = engine.metrics.num_preempted
    most, both = tolerance or TOLERANCE[model.dtype], [*expected, *expected]
    found = [one.differs(tokens, most) for one, tokens in zip(both, got, strict=True)]
    row["tokens"] = sum(number for number, _ in found)
    row["of"] = sum(len(one.tokens) for one in both)  # but for what follows near ties
    row["agrees"] = not any(bad for _, bad in found)
