"""The servers that ``perf baselines`` compares: ours, and peers, each of which is a command in a
Python environment that the user made.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generator.errors import PerfError
from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS, Request
from perf.processes import free_listen, running

if TYPE_CHECKING:
    from perf.load.level import Sent

MODEL_FOLDER = "llama-42m"
DTYPES = ("float32", "bfloat16")
MAX_MODEL_LEN = LONGEST_PROMPT + OUTPUT_LENGTHS[-1]  # tokens
START_TIMEOUT_S, STOP_TIMEOUT_S = 600.0, 20.0
# PYTHONPATH would show a peer our packages; thread settings are each server's own default.
_NOT_INHERITED = (
    *("PYTHONPATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    "TORCH_NUM_THREADS",
)
_OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_LISTEN = "--host 127.0.0.1 --port {port}"
MODELS_YAML = """\
models:
  - name: {model}
    task: text-generation
    model: ./{model}
    dtype: {dtype}
    streaming: {streaming}
    options: {{engine: in_flight, max_model_len: {length}}}
"""
Body = Callable[[Request, str, bool], Mapping[str, Any]]
"""Makes the body of a request; the arguments are the model's name and whether to stream."""


def _triton(request: Request, _: str, stream: bool) -> Mapping[str, Any]:
    if stream:
        return {"text_input": request.prompt, "max_tokens": request.max_tokens, "stream": True}
    tensors = (
        ("text_input", "BYTES", request.prompt),
        ("max_tokens", "INT32", request.max_tokens),
        ("return_num_output_tokens", "BOOL", True),
    )
    return {
        "inputs": [
            {"name": name, "datatype": datatype, "shape": [1], "data": [value]}
            for name, datatype, value in tensors
        ]
    }


def _completions(request: Request, model: str, stream: bool) -> Mapping[str, Any]:
    asked = {"prompt": request.prompt, "max_tokens": request.max_tokens, "temperature": 0}
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return {"model": model, **asked, **more}


@dataclass(frozen=True)
class Server:
    """A server and how to start it. ``routes`` has the endpoint for whole answers and the one for
    streams. ``command`` may hold {model}, {dtype}, {port} and {cores}; if it is empty, ``hf-triton
    serve`` is started. A peer is ready when its /health answers.
    """

    name: str
    what: str
    routes: tuple[str, str] = ("completions", "completions")
    body: Body = _completions
    command: str = ""
    environment: str = ""
    pip: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    def missing(self, environments: Path) -> str:
        """The shell command that installs this server; empty if it is installed."""
        folder = environments / self.environment
        if not self.command or (folder / "bin" / self.command.split(" ", 1)[0]).exists():
            return ""
        return f"python -m venv {folder} && {folder}/bin/pip install {self.pip}"

    def sent(self, request: Request, model: str, *, stream: bool) -> Sent:
        from perf.load.level import Sent  # imported here: the command line needs no aiohttp

        body = json.dumps(self.body(request, model, stream))
        return Sent(body, request.max_tokens, num_words=request.max_tokens)


SERVERS: Sequence[Server] = (
    Server(
        name="ours",
        what="hf-triton serve, the in-flight engine",
        routes=("infer", "stream"),
        body=_triton,
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


@dataclass(frozen=True)
class Running:
    """A ready server: its HTTP port, and the model's names for whole answers and for streams."""

    port: int
    model: str
    streaming_model: str


@contextmanager
def started(
    server: Server, dtype: str, folder: Path, environments: Path, *, streaming: bool = False
) -> Iterator[Running]:
    """Starts a server, and stops it at the end. ``folder`` holds the model; logs and repositories
    are written there. Raises PerfError, OSError.
    """
    if missing := server.missing(environments):
        raise PerfError(f"{server.name} is not installed: {missing}")
    if server.command:
        with _command(server, dtype, folder, environments / server.environment) as up:
            yield up
        return
    from generator.spec.triton_models import engine_name
    from perf.sweep.server import own_server

    config, repository = folder / "models.yaml", folder / f"{dtype}_repository"
    named = {"model": MODEL_FOLDER, "dtype": dtype, "streaming": str(streaming).lower()}
    config.write_text(MODELS_YAML.format(**named, length=MAX_MODEL_LEN), encoding="utf-8")
    with own_server(config, repository, folder, [MODEL_FOLDER]) as addresses:
        port = int(addresses.http.rpartition(":")[2])
        yield Running(port, MODEL_FOLDER, engine_name(MODEL_FOLDER))


@contextmanager
def _command(server: Server, dtype: str, folder: Path, home: Path) -> Iterator[Running]:
    port, model = free_listen().http_port, str(folder / MODEL_FOLDER)
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    named = {"port": port, "cores": cores, "model": model, "dtype": dtype}
    program, *arguments = (word.format(**named) for word in server.command.split(" "))
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    variables = {name: value.format(**named) for name, value in server.variables.items()}
    command = [str(home.absolute() / "bin" / program), *arguments]
    log, environment = folder / f"{server.name}-{dtype}.log", {**inherited, **_OFFLINE, **variables}
    times = (START_TIMEOUT_S, STOP_TIMEOUT_S)
    url = f"http://127.0.0.1:{port}/health"
    with running(command, lambda: _answers(url), log, *times, environment):
        yield Running(port, model, model)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True
