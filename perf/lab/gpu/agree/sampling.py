"""Every way to choose a token, beside the CPU's choice.

Steps are prepared before the token before them is read, as the engine does on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from hf_triton.text_generation.engines.in_flight.warm_up import dummy_sequence
from hf_triton.text_generation.sampling.sampler import Sampler, SamplerInputs
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from perf.lab.gpu.told import Told

_DRAWN = {"temperature": 0.8}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": _DRAWN,
    "top_k": {**_DRAWN, "top_k": 40},
    "top_k and top_p": {**_DRAWN, "top_k": 40, "top_p": 0.9},
    "top_p": {**_DRAWN, "top_p": 0.95},
    "min_p": {**_DRAWN, "min_p": 0.05},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.5},
    "bias, bad words, min_tokens": {
        "logit_bias": ((3, 2.0), (5, -100.0)),
        "bad_token_ids": ((7,), (8, 9)),
        "stop_token_ids": (11,),
        "min_tokens": 5,
    },
    "logprobs": {"num_logprobs": 5},
}
_STEPS = 20
_LEAST_ALIKE = 0.995  # sums are of another order, and a number may fall between two tokens


def measure(told: Told) -> None:
    """A row for each way."""
    num_rows, vocab_size = (4, 1000) if told.is_cpu else (64, 32_000)
    for name in WAYS:
        with told.case(name, "kernel" if "temperature" in WAYS[name] else "") as row:
            steps = _Steps(told.device, WAYS[name], num_rows, vocab_size)
            num_alike, num_tokens = sum(steps.run() for _ in range(_STEPS)), _STEPS * num_rows
            row["run_by"] = "kernel" if steps.sampler.has_kernel else "operators"
            row |= {"tokens": num_tokens, "near_ties": num_tokens - num_alike}
            row["agrees"] = num_alike >= _LEAST_ALIKE * num_tokens


class _Steps:
    """Sequences of one way on the device, each a step ahead of what is read, and on the CPU."""

    def __init__(
        self, device: torch.device, options: dict[str, Any], num_rows: int, vocab_size: int
    ) -> None:
        params = [SamplingParams(1000, seed=seed, **options) for seed in range(num_rows)]
        self.device, self.sampler, self._cpu = device, Sampler([2]), Sampler([2])
        self._rows = [dummy_sequence([1, 2, 3], one) for one in params]
        self._cpu_rows = [dummy_sequence([1, 2, 3], one) for one in params]
        self._random = torch.Generator().manual_seed(0)
        self._shape = num_rows, vocab_size
        self._launch(self._prepared())

    def run(self) -> int:
        """Reads a step after the next is prepared; how many of its tokens are the CPU's."""
        inputs = self._prepared()
        got = self._sampled.read()
        expected = self._cpu.sample(self._logits, self._cpu_rows)
        for one, other, token in zip(self._rows, self._cpu_rows, got, strict=True):
            one.num_pending = 0
            one.append(token, frozenset())
            other.append(token, frozenset())
        self._launch(inputs)
        return sum(ours.id == token.id for ours, token in zip(got, expected, strict=True))

    def _prepared(self) -> SamplerInputs:
        pending = {one: row for row, one in enumerate(self._rows)}
        return self.sampler.prepare(self._rows, self._shape[1], pending)

    def _launch(self, inputs: SamplerInputs) -> None:
        self._logits = torch.randn(self._shape, generator=self._random).mul_(3).bfloat16()
        self._on_device = self._logits.to(self.device, copy=True)
        self._sampled = self.sampler.launch(self._on_device, inputs)
        for one in self._rows:
            one.num_pending = 1
