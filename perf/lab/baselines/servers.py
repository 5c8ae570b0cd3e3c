"""The servers that ``perf baselines`` compares: ours, and peers, each of which is a command in a
Python environment that the user made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from generator.errors import PerfError
from generator.python_modules import free_ports, run_module
from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS
from perf.processes import body_of, our_environment, running

MODEL_FOLDER = "llama-42m"
DTYPES = ("float32", "bfloat16")
MAX_MODEL_LEN = LONGEST_PROMPT + OUTPUT_LENGTHS[-1]  # tokens
START_TIMEOUT_S, STOP_TIMEOUT_S = 600.0, 90.0
# PYTHONPATH would show a peer our packages; thread settings are each server's own default; requests
# have no key.
_NOT_INHERITED = (
    *("PYTHONPATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("TORCH_NUM_THREADS", "HF_TRITON_API_KEYS"),
)
_OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_LISTEN = "--host 127.0.0.1 --port {ports[0]}"
MODELS_YAML = """\
models:
  - name: {model}
    task: text-generation
    model: ./{model}
    dtype: {dtype}
    options: {{engine: in_flight, max_model_len: {length}}}
"""


@dataclass(frozen=True)
class Server:
    """A server of OpenAI's completions, and how to start it. ``command`` and ``ready``, the address
    that answers when it is, may hold {folder}, {model}, {dtype}, {cores} and {ports}, whose first
    one is asked. A peer's command is in its ``environment``; ours has none.
    """

    name: str
    what: str
    command: str
    environment: str = ""
    pip: str = ""
    ready: str = "http://127.0.0.1:{ports[0]}/health"
    variables: Mapping[str, str] = field(default_factory=dict)

    def missing(self, environments: Path) -> str:
        """The shell command that installs this server; empty if it is installed."""
        folder = environments / self.environment
        if not self.environment or (folder / "bin" / self.command.split(" ", 1)[0]).exists():
            return ""
        return f"python -m venv {folder} && {folder}/bin/pip install {self.pip}"


SERVERS: Sequence[Server] = (
    Server(
        name="ours",
        what="hf-triton serve, the in-flight engine",
        command="serve --config {folder}/models.yaml --repository {folder}/{dtype}"
        " --openai-port {ports[0]} --health-port {ports[1]} --http-port {ports[2]}"
        " --grpc-port {ports[3]} --metrics-port {ports[4]}",
        ready="http://127.0.0.1:{ports[1]}/ready",
    ),
    Server(
        name="transformers-serve",
        what="transformers serve --continuous-batching",
        # Without sizes its cache takes most of the machine's memory.
        command="python -m transformers.cli.transformers serve --continuous-batching --device cpu"
        " --dtype {dtype} --attn-implementation sdpa --cb-block-size 32 --cb-num-blocks 2048"
        f" --cb-max-batch-tokens 512 --log-level error {_LISTEN} {{model}}",
        environment="serving",
        pip="torch==2.13.0 transformers fastapi uvicorn[standard] openai rich python-multipart",
    ),
    Server(
        name="vllm",
        what="vLLM, vllm serve; on a machine without a GPU its CPU build",
        command=f"vllm serve {{model}} --dtype {{dtype}} --max-model-len {MAX_MODEL_LEN} {_LISTEN}"
        " --disable-uvicorn-access-log",
        environment="vllm",
        pip="vllm",
        # All cores: by default it leaves one free, which is slower from 32 clients on.
        variables={"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "{cores}"},
    ),
)
BY_NAME = {server.name: server for server in SERVERS}


@contextmanager
def started(
    server: Server, dtype: str, folder: Path, environments: Path
) -> Iterator[tuple[int, str]]:
    """Starts a server, and stops it at the end: its port, and the model's name there. ``folder``
    holds the model; logs and our repository are written there. Raises PerfError, OSError.
    """
    if missing := server.missing(environments):
        raise PerfError(f"{server.name} is not installed: {missing}")
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    model, ports = str(folder / MODEL_FOLDER), free_ports(5)
    config = MODELS_YAML.format(model=MODEL_FOLDER, dtype=dtype, length=MAX_MODEL_LEN)
    (folder / "models.yaml").write_text(config, encoding="utf-8")
    named = {
        "folder": folder,
        "model": model,
        "dtype": dtype,
        "ports": ports,
        "cores": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
    }
    program, *arguments = (word.format(**named) for word in server.command.split(" "))
    command = [str(environments.absolute() / server.environment / "bin" / program)]
    if not server.environment:
        model, command = MODEL_FOLDER, run_module("hf_triton.cli", program)
        inherited["PYTHONPATH"] = our_environment()["PYTHONPATH"]
    variables = {name: value.format(**named) for name, value in server.variables.items()}
    log, environment = folder / f"{server.name}-{dtype}.log", {**inherited, **_OFFLINE, **variables}
    ready, times = server.ready.format(**named), (START_TIMEOUT_S, STOP_TIMEOUT_S)

    def is_ready() -> bool:
        return body_of(ready, timeout_s=5) is not None

    with running([*command, *arguments], is_ready, log, *times, environment):
        yield ports[0], model
