"""What one request asks of sampling and stopping, with the allowed ranges.

Knows no tensors of Triton and no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hf_runtime.errors import RequestError

MAX_SEED = 2**64 - 1


@dataclass(frozen=True)
class SamplingParams:
    """Checked when made. ``temperature`` 0 takes the likeliest token; ``top_k`` 0 and ``top_p`` 0
    or 1 are off.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises RequestError that names the field, what was got and what is allowed."""
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "0 to max_tokens")
        _require(
            self.min_tokens <= self.max_tokens,
            "min_tokens",
            self.min_tokens,
            f"0 to max_tokens ({self.max_tokens})",
        )
        _require(
            math.isfinite(self.temperature) and self.temperature >= 0,
            "temperature",
            self.temperature,
            "0 (greedy) or any finite number above it",
        )
        _require(self.top_k >= -1, "top_k", self.top_k, "0 or -1 (off), or 1 and more")
        _require(0 <= self.top_p <= 1, "top_p", self.top_p, "0 (off) to 1")
        _require(
            math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty",
            self.repetition_penalty,
            "a finite number above 0 (1 is off)",
        )
        _require(
            self.seed is None or 0 <= self.seed <= MAX_SEED, "seed", self.seed, f"0 to {MAX_SEED}"
        )

    def with_max_tokens(self, max_tokens: int) -> SamplingParams:
        """The same with another max_tokens."""
        return replace(self, max_tokens=max_tokens)

    @property
    def is_greedy(self) -> bool:
        """True where the likeliest token is taken, so that no random number is drawn."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def filters(self) -> bool:
        """True where top_k or top_p cut the distribution."""
        return self.top_k > 0 or 0 < self.top_p < 1


def _require(condition: bool, field: str, got: object, allowed: str) -> None:
    if not condition:
        raise RequestError(f"{field}: got {got}, allowed: {allowed}")
