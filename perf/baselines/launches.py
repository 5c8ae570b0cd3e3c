"""The command lines of the peers that are one command each, in their own environments.

Where one takes its cache's size from the machine's memory, it is told one that holds the load.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from perf.baselines import targets
from perf.baselines.ports import HOST
from perf.load import targets as asked
from perf.load.http import Target
from perf.load.process import ROOT
from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS

MAX_MODEL_LEN = LONGEST_PROMPT + OUTPUT_LENGTHS[-1]  # tokens
VLLM_CACHE_GIB = 2
PAGE_SIZE, NUM_BLOCKS, MAX_BATCH_TOKENS = 32, 2048, 512  # of transformers' batching


@dataclass(frozen=True)
class Launch:
    """A peer's command line and variables, from the model's folder, number format and port."""

    command: Callable[[str, str, int], Sequence[str]]
    variables: Callable[[str, str], Mapping[str, str]]
    health: str
    asked: Target


def app_command(app: str, port: int) -> Sequence[str]:
    """An app of ours in uvicorn, one worker."""
    options = ["--host", HOST, "--port", str(port), "--no-access-log", "--log-level", "warning"]
    return ["uvicorn", "--app-dir", str(ROOT), f"perf.baselines.{app}:app", *options]


def serve_command(model: str, dtype: str, port: int) -> Sequence[str]:
    """``transformers serve`` with a cache as large as ``batching_app``'s."""
    return [
        *("python", "-m", "transformers.cli.transformers", "serve", "--continuous-batching"),
        *("--device", "cpu", "--dtype", dtype),
        *("--attn-implementation", "sdpa", "--cb-block-size", str(PAGE_SIZE)),
        *("--cb-num-blocks", str(NUM_BLOCKS)),
        *("--cb-max-batch-tokens", str(MAX_BATCH_TOKENS)),
        *("--log-level", "error", "--host", HOST, "--port", str(port), model),
    ]


def vllm_command(model: str, dtype: str, port: int) -> Sequence[str]:
    """``vllm serve`` as its documentation has it, without a line of log per request."""
    return [
        *("vllm", "serve", model, "--max-model-len", str(MAX_MODEL_LEN), "--dtype", dtype),
        *("--host", HOST, "--port", str(port), "--disable-uvicorn-access-log"),
    ]


def vllm_variables(_model: str, _dtype: str) -> Mapping[str, str]:
    """All cores: its default leaves one to others, and is slower from 32 clients on."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return {"VLLM_CPU_KVCACHE_SPACE": str(VLLM_CACHE_GIB), "VLLM_CPU_OMP_THREADS_BIND": cores}


def batching_variables(model: str, dtype: str) -> Mapping[str, str]:
    """What ``batching_app.py`` reads."""
    sizes = {"PAGE_SIZE": PAGE_SIZE, "NUM_BLOCKS": NUM_BLOCKS, "MAX_BATCH_TOKENS": MAX_BATCH_TOKENS}
    return {"MODEL": model, "DTYPE": dtype, **{name: str(size) for name, size in sizes.items()}}


LAUNCHES: Mapping[str, Launch] = {
    targets.FASTAPI: Launch(
        lambda _model, _dtype, port: app_command("pipeline_app", port),
        lambda model, _: {"MODEL": model},
        "/openapi.json",
        asked.PROMPT,
    ),
    targets.BATCHING: Launch(
        lambda _model, _dtype, port: app_command("batching_app", port),
        batching_variables,
        "/openapi.json",
        asked.PROMPT,
    ),
    targets.SERVE: Launch(serve_command, lambda _model, _dtype: {}, "/health", asked.COMPLETIONS),
    targets.VLLM: Launch(vllm_command, vllm_variables, "/health", asked.VLLM),
}
