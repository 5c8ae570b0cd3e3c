"""What is run on a GPU, each job a process of its own with a time limit.

Standard library only: this is read before anything is known of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

PROVE, RACE, SERVE = "prove", "race", "serve"


@dataclass(frozen=True)
class Job:
    """``words`` are a module of perf.lab.gpu and what its ``measure`` is given; ``under`` is what
    runs it in a Python of its own.
    """

    name: str
    words: tuple[str, ...]
    limit_s: float = 200.0
    under: tuple[str, ...] = ()
    needs_gpu: bool = False


def _kernels(name: str, group: str, pattern: str = "") -> Job:
    return Job(f"kernels-{name}", ("kernels.checks", group, pattern))


def _timed(group: str, limit_s: float) -> Job:
    return Job(f"kernels-{group}", ("kernels.timing", group), limit_s, needs_gpu=True)


def _agree(name: str, *pattern: str) -> Job:
    return Job(name, (f"agree.{name.partition('-')[0]}", *pattern))


def _speed(name: str, who: str, limit_s: float, clients: str = "1,8,64,256") -> Job:
    shape = name.partition(" ")[0]
    needs_gpu = shape != "tiny"
    return Job(name, ("speed.loops", shape, who, clients), limit_s, needs_gpu=needs_gpu)


def _sanitized(tool: str, group: str) -> Job:
    under = ("compute-sanitizer", "--print-limit", "5", "--tool", tool)
    words = ("kernels.checks", group, "", "small")
    return Job(f"{tool}-{group}", words, 150.0, under, needs_gpu=True)


JOBS: dict[str, tuple[Job, ...]] = {
    PROVE: (
        # The longest first: they compile for longer than they compute.
        _kernels("attention-f32", "attention", " float32$"),
        _kernels("attention-bf16", "attention", " bfloat16$"),
        _agree("ways-f32-attention", "^(fused|paged).*float32"),
        _agree("ways-f32-settings", "^(as it|slots|each|few|without).*float32"),
        _agree("ways-bf16", "bfloat16"),
        _agree("models-window", "^(window|llama)$"),
        _agree("models-soft-cap", "^soft cap$"),
        _agree("models-bases", "^two rotary bases$"),
        _agree("models-normed", "^(biases|normed heads)$"),
        _agree("models-joined", "^(joined products|learned positions)$"),
        _agree("models-parallel", "^(parallel layers|one key head)$"),
        _agree("models-experts", "^(experts|alibi|latent)$"),
        _agree("models-states", "^(states|convolutions)"),
        _agree("weights"),
        _agree("sampling"),
        _agree("encoders"),
        _kernels("attention-f16", "attention", " float16$"),
        _kernels("rows", "rows"),
        _kernels("draws", "draws"),
        _kernels("graphs", "graphs"),
        *(_sanitized("memcheck", group) for group in ("attention", "rows", "draws")),
        _sanitized("racecheck", "rows"),
    ),
    RACE: (
        _timed("time", 60.0),
        _speed("llama-1b ours", "ours,profile", 100.0),
        _speed("llama-8b ours", "ours,profile", 150.0),
        _speed("llama-8b others", "batching,generate", 90.0, "64"),
        _timed("sweep", 70.0),
        _speed("llama-1b others", "batching,generate", 90.0, "8,64"),
        _speed("llama-1b memory", "memory", 60.0),
        _speed("tiny", "ours,batching,memory,generate", 60.0, "1,4"),
    ),
    SERVE: (Job("served", ("served",), 540.0),),
}
