"""The ``options:`` of a text-generation model: keys, units, ranges and defaults.

Standard library only: the generator loads this file to check models.yaml, and the server loads it
to read ``model.json``. It does not know engines; it only names them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# Whether the engines here can answer piece by piece; read by generator/templates.py.
STREAMS = True


@dataclass(frozen=True)
class Options:
    """How one text-generation model is run. ``None`` means: decided when the model loads."""

    engine: Literal["auto", "in_flight", "generate"] = field(
        default="auto",
        metadata={
            "help": "in_flight: requests join and leave a running batch at every step; generate: "
            "padded batches through model.generate; auto: the first that holds the model"
        },
    )
    max_model_len: int | None = field(
        default=None,
        metadata={
            "help": "longest prompt plus output; default: the model's own limit",
            "unit": "tokens",
            "min": 2,
        },
    )
    max_num_seqs: int | None = field(
        default=None,
        metadata={
            "help": "sequences generated at once; default: 64, or what the cache budget holds",
            "unit": "sequences",
            "min": 1,
            "max": 1024,
        },
    )
    max_num_batched_tokens: int = field(
        default=512,
        metadata={
            "help": "most tokens computed in one step; longer prompts are prefilled in chunks",
            "unit": "tokens",
            "min": 1,
        },
    )
    max_queue_size: int = field(
        default=1024,
        metadata={
            "help": "requests that may wait beyond the running ones; more are refused with 503",
            "unit": "sequences",
            "min": 0,
        },
    )
    kv_cache_gib: float | None = field(
        default=None,
        metadata={
            "help": "memory for keys and values; default: what max_num_seqs x max_model_len needs, "
            "at most half of the free memory (CPU) or 90 % of it (GPU)",
            "unit": "GiB",
            "exclusive_min": 0,
        },
    )
    default_max_tokens: int = field(
        default=128,
        metadata={
            "help": "output length of a request that does not set max_tokens",
            "unit": "tokens",
            "min": 1,
        },
    )

    default_timeout_ms: int | None = field(
        default=None,
        metadata={
            "help": "time that a request without timeout_ms has; default: no limit",
            "unit": "milliseconds",
            "min": 1,
        },
    )
    max_timeout_ms: int | None = field(
        default=None,
        metadata={
            "help": "the most that a request may set as timeout_ms, and what it has without",
            "unit": "milliseconds",
            "min": 1,
        },
    )
    unload_grace_s: float = field(
        default=20.0,
        metadata={
            "help": "how long requests in flight may go on when the model is unloaded; the rest is "
            "answered with 503",
            "unit": "seconds",
            "min": 0,
        },
    )
    watchdog_s: float = field(
        default=300.0,
        metadata={
            "help": "a step that takes longer is given up: its requests fail and the model is not "
            "ready until it ends",
            "unit": "seconds",
            "exclusive_min": 0,
        },
    )

    def problems(self) -> list[tuple[str, str]]:
        """Mistakes that only show in two fields together, each as (field, message)."""
        found = []
        if self.max_num_seqs is not None and self.max_num_batched_tokens < self.max_num_seqs:
            message = (
                f"got {self.max_num_batched_tokens}, expected at least max_num_seqs "
                f"({self.max_num_seqs}): a step computes one token for each running sequence"
            )
            found.append(("max_num_batched_tokens", message))
        default, ceiling = self.default_timeout_ms, self.max_timeout_ms
        if default is not None and ceiling is not None and default > ceiling:
            message = f"got {default}, expected at most max_timeout_ms ({ceiling})"
            found.append(("default_timeout_ms", message))
        return found
