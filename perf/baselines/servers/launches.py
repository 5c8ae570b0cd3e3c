"""The command lines of the peers that are one command each, in their own environments.

Where one takes its cache's size from the machine's memory, it is told one that holds the load.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from generator.server.listen import Listen
from perf.baselines import targets
from perf.baselines.servers.processes import HOST
from perf.load import targets as asked
from perf.load.http import Target
from perf.load.process import ROOT
from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS

MAX_MODEL_LEN = LONGEST_PROMPT + OUTPUT_LENGTHS[-1]  # tokens
VLLM_CACHE_GIB = 2
MLSERVER_BATCH_SIZE, MLSERVER_BATCH_TIME_S = 32, 0.02  # of its adaptive batching
PAGE_SIZE, NUM_BLOCKS, MAX_BATCH_TOKENS = 32, 2048, 512  # of transformers' batching


@dataclass(frozen=True)
class Setting:
    """What a peer is started with: the model's folder, the number format, ports, and a folder for
    its settings.
    """

    model: str
    dtype: str
    listen: Listen
    settings: Path

    @property
    def port(self) -> str:
        return str(self.listen.http_port)


@dataclass(frozen=True)
class Launch:
    """A peer's command line, where it says that it is up, what it is asked, and its variables."""

    command: Callable[[Setting], Sequence[str]]
    health: str
    asked: Target
    variables: Callable[[Setting], Mapping[str, object]] = lambda _: {}


def app_command(app: str, setting: Setting) -> Sequence[str]:
    """An app of ours in uvicorn, one worker."""
    options = ["--host", HOST, "--port", setting.port, "--no-access-log", "--log-level", "warning"]
    return ["uvicorn", "--app-dir", str(ROOT), f"perf.baselines.servers.{app}:app", *options]


def serve_command(setting: Setting) -> Sequence[str]:
    """``transformers serve`` with a cache as large as ``batching_app``'s."""
    return [
        *("python", "-m", "transformers.cli.transformers", "serve", "--continuous-batching"),
        *("--device", "cpu", "--dtype", setting.dtype),
        *("--attn-implementation", "sdpa", "--cb-block-size", str(PAGE_SIZE)),
        *("--cb-num-blocks", str(NUM_BLOCKS)),
        *("--cb-max-batch-tokens", str(MAX_BATCH_TOKENS)),
        *("--log-level", "error", "--host", HOST, "--port", setting.port, setting.model),
    ]


def vllm_command(setting: Setting) -> Sequence[str]:
    """``vllm serve`` as its documentation has it, without a line of log per request."""
    return [
        *("vllm", "serve", setting.model, "--dtype", setting.dtype),
        *("--max-model-len", str(MAX_MODEL_LEN)),
        *("--host", HOST, "--port", setting.port, "--disable-uvicorn-access-log"),
    ]


def mlserver_command(setting: Setting) -> Sequence[str]:
    """MLServer with its Hugging Face runtime, its settings as files."""
    listen = setting.listen
    of_server = {
        "host": listen.host,
        "debug": False,
        "http_port": listen.http_port,
        "grpc_port": listen.grpc_port,
        "metrics_port": listen.metrics_port,
    }
    extra = {
        "task": "text-generation",
        "pretrained_model": setting.model,
        "framework": "pt",
        "device": -1,
    }
    of_model = {
        "name": asked.MLSERVER.name,
        "implementation": "mlserver_huggingface.HuggingFaceRuntime",
        "max_batch_size": MLSERVER_BATCH_SIZE,
        "max_batch_time": MLSERVER_BATCH_TIME_S,
        "parameters": {"extra": extra},
    }
    setting.settings.mkdir(exist_ok=True)
    for name, content in (("settings", of_server), ("model-settings", of_model)):
        file = setting.settings / f"{name}.json"
        file.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return ["mlserver", "start", str(setting.settings)]


def vllm_variables(_: Setting) -> Mapping[str, object]:
    """All cores: its default leaves one to others, and is slower from 32 clients on."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return {"VLLM_CPU_KVCACHE_SPACE": VLLM_CACHE_GIB, "VLLM_CPU_OMP_THREADS_BIND": cores}


def batching_variables(setting: Setting) -> Mapping[str, object]:
    """What ``batching_app.py`` reads."""
    sizes = {"PAGE_SIZE": PAGE_SIZE, "NUM_BLOCKS": NUM_BLOCKS, "MAX_BATCH_TOKENS": MAX_BATCH_TOKENS}
    return {"MODEL": setting.model, "DTYPE": setting.dtype, **sizes}


LAUNCHES: Mapping[str, Launch] = {
    targets.FASTAPI: Launch(
        partial(app_command, "pipeline_app"),
        *("/openapi.json", asked.PROMPT),
        lambda setting: {"MODEL": setting.model},
    ),
    targets.BATCHING: Launch(
        *(partial(app_command, "batching_app"), "/openapi.json", asked.PROMPT, batching_variables)
    ),
    targets.MLSERVER: Launch(
        mlserver_command, f"/v2/models/{asked.MLSERVER.name}/ready", asked.MLSERVER
    ),
    targets.SERVE: Launch(serve_command, "/health", asked.COMPLETIONS),
    targets.VLLM: Launch(vllm_command, "/health", asked.VLLM, vllm_variables),
}
