"""The command lines of the peers that are one command each, in their own environments.

Where one takes its cache's size from the machine's memory, it is told one that holds the load.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hf_triton.tritonserver.listen import Listen
from perf.lab.baselines import targets
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

    def fill(self, text: str) -> str:
        """``text`` with what it names in braces."""
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        return text.format(port=self.listen.http_port, cores=cores, root=ROOT, **vars(self))


@dataclass(frozen=True)
class Launch:
    """A peer's command line, where it says that it is up, what it is asked, and its variables; the
    words in braces are Setting's.
    """

    command: str
    health: str
    asked: Target
    variables: Mapping[str, str] = field(default_factory=dict)

    def words(self, setting: Setting) -> Sequence[str]:
        return [setting.fill(word) for word in self.command.split(" ")]

    def environment(self, setting: Setting) -> dict[str, str]:
        """The variables."""
        return {name: setting.fill(value) for name, value in self.variables.items()}


def write_mlserver_settings(setting: Setting) -> None:
    """MLServer with its Hugging Face runtime has its settings as files."""
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


_LISTEN = "--host 127.0.0.1 --port {port}"
# An app of ours, one worker.
_UVICORN = "uvicorn --app-dir {root} --no-access-log --log-level warning"
_APP = f"{_UVICORN} {_LISTEN} perf.lab.baselines.servers"
_CACHE = {"PAGE_SIZE": PAGE_SIZE, "NUM_BLOCKS": NUM_BLOCKS, "MAX_BATCH_TOKENS": MAX_BATCH_TOKENS}
LAUNCHES: Mapping[str, Launch] = {
    targets.FASTAPI: Launch(
        f"{_APP}.pipeline_app:app", "/openapi.json", asked.PROMPT, {"MODEL": "{model}"}
    ),
    targets.BATCHING: Launch(
        f"{_APP}.batching_app:app",
        "/openapi.json",
        asked.PROMPT,
        {
            "MODEL": "{model}",
            "DTYPE": "{dtype}",
            **{name: str(size) for name, size in _CACHE.items()},
        },
    ),
    targets.MLSERVER: Launch(
        "mlserver start {settings}", f"/v2/models/{asked.MLSERVER.name}/ready", asked.MLSERVER
    ),
    targets.SERVE: Launch(
        "python -m transformers.cli.transformers serve --continuous-batching --device cpu"
        f" --dtype {{dtype}} --attn-implementation sdpa --cb-block-size {PAGE_SIZE}"
        f" --cb-num-blocks {NUM_BLOCKS} --cb-max-batch-tokens {MAX_BATCH_TOKENS}"
        f" --log-level error {_LISTEN} {{model}}",
        "/health",
        asked.COMPLETIONS,
    ),
    # As its documentation has it, without a line of log per request, on all cores: its default
    # leaves one to others, and is slower from 32 clients on.
    targets.VLLM: Launch(
        f"vllm serve {{model}} --dtype {{dtype}} --max-model-len {MAX_MODEL_LEN} {_LISTEN}"
        " --disable-uvicorn-access-log",
        "/health",
        asked.VLLM,
        {"VLLM_CPU_KVCACHE_SPACE": str(VLLM_CACHE_GIB), "VLLM_CPU_OMP_THREADS_BIND": "{cores}"},
    ),
}
