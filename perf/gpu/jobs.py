"""What is run on a GPU, each job a process of its own with a time limit.

Standard library only: this is read before anything is known of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

PROVE, RACE, SERVE = "prove", "race", "serve"


@dataclass(frozen=True)
class Job:
    """``words`` are a module of perf.gpu and its arguments; ``under`` is what runs Python."""

    name: str
    words: tuple[str, ...]
    limit_s: float = 200.0
    under: tuple[str, ...] = ()
    needs_gpu: bool = False


def _kernels(name: str, *words: str, limit_s: float = 200.0, needs_gpu: bool = False) -> Job:
    return Job(f"kernels-{name}", ("kernels", *words), limit_s, needs_gpu=needs_gpu)


def _agree(name: str, group: str, pattern: str = "") -> Job:
    return Job(name, ("agree", group, pattern))


def _speed(name: str, shape: str, who: str, limit_s: float, clients: str = "1,8,64,256") -> Job:
    words = ("speed", shape, "--who", who, "--clients", clients)
    return Job(name, words, limit_s, needs_gpu=shape != "tiny")


def _sanitized(tool: str, group: str) -> Job:
    under = ("compute-sanitizer", "--print-limit", "5", "--tool", tool)
    words = ("kernels", group, "--small")
    return Job(f"{tool}-{group}", words, 150.0, under, needs_gpu=True)


JOBS: dict[str, tuple[Job, ...]] = {
    PROVE: (
        # The longest first: they compile for longer than they compute.
        _kernels("attention-f32", "attention", "--dtype", "float32"),
        _kernels("attention-bf16", "attention", "--dtype", "bfloat16"),
        _agree("ways-f32-settings", "ways", "^(as it|slots|each|few|without).*float32"),
        _agree("ways-f32-attention", "ways", "^(fused|paged).*float32"),
        _agree("ways-bf16", "ways", "bfloat16"),
        _agree("models-window", "models", "^(window|llama)$"),
        _agree("models-soft-cap", "models", "^soft cap$"),
        _agree("models-bases", "models", "^two rotary bases$"),
        _agree("models-normed", "models", "^(biases|normed heads)$"),
        _agree("models-joined", "models", "^(joined products|learned positions)$"),
        _agree("models-parallel", "models", "^(parallel layers|one key head)$"),
        _agree("models-experts", "models", "^(experts|alibi|latent)$"),
        _agree("models-states", "models", "^(states|convolutions)"),
        _agree("weights", "weights"),
        _agree("sampling", "sampling"),
        _agree("encoders", "encoders"),
        _kernels("attention-f16", "attention", "--dtype", "float16"),
        _kernels("rows", "rows"),
        _kernels("draws", "draws"),
        _kernels("graphs", "graphs"),
        *(_sanitized("memcheck", group) for group in ("attention", "rows", "draws")),
        _sanitized("racecheck", "rows"),
    ),
    RACE: (
        _kernels("time", "time", limit_s=60.0, needs_gpu=True),
        _speed("1b-ours", "llama-1b", "ours,profile", 100.0),
        _speed("8b-ours", "llama-8b", "ours,profile", 150.0),
        _speed("8b-transformers", "llama-8b", "batching,generate", 90.0, "64"),
        _kernels("sweep", "sweep", limit_s=70.0, needs_gpu=True),
        _speed("1b-others", "llama-1b", "batching,generate,vllm", 90.0, "8,64"),
        _speed("memory", "llama-1b", "memory", 60.0),
        _speed("tiny", "tiny", "ours,batching,memory,generate", 60.0, "1,4"),
    ),
    SERVE: (Job("served", ("served",), 540.0),),
}
