"""Why costs that grow worse than linearly do, with the evidence; told where a run shows one."""

from __future__ import annotations

from collections.abc import Mapping

_PREFILL = """\
Attention: each token of a prompt looks at all before it, so its share grows with the square of \
the length, and everything else with the length. Of the 42 M model's shape in chunks of 512 \
tokens, as the engine computes them, on one AVX-512 core attention takes 0.06 of 0.36 s of \
processor time at 512 tokens (18 %), 0.19 of 0.81 s at 1,024 (23 %) and 0.66 of 1.91 s at 2,048 \
(35 %): together like n^1.19 from 512 to 2,048; the server there showed n^1.16 to n^1.19. It is \
the model's own arithmetic."""
_QUEUE = """\
The line of those who wait: while every processor is busy, n clients wait n times as long as one \
request takes, and those who come beyond the places in a step wait for a place first. Time for \
each request tells what a request costs."""

EXPLANATIONS: Mapping[tuple[str, str, str], str] = {
    ("prompts", "in-flight engine", "prefill_s"): _PREFILL,
    ("prompts", "in-flight engine", "prefill_cpu_s"): _PREFILL,
    ("clients", "in-flight engine", "latency_p50_s"): _QUEUE,
    ("clients", "in-flight engine", "latency_p99_s"): _QUEUE,
}
"""By axis, target and figure."""
UNEXPLAINED = (
    "Not explained yet: profile it, make it better, or say in "
    "perf/growth/report/explanations.py why not."
)
