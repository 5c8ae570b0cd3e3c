"""The servers that are compared: how each is started and asked. A peer that is one command runs in
a Python environment that the user makes with the packages in its ``pip``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from generator.errors import PerfError
from generator.python_modules import run_module
from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS, Request
from perf.load.routes import Sent
from perf.serving import free_listen, running, serving

ROOT = Path(__file__).parents[3]
MODEL_FOLDER = "llama-42m"  # named in tutorial/config.pbtxt too
FLOAT32, BFLOAT16, FLOAT16 = "float32", "bfloat16", "float16"
DTYPES = (FLOAT32, BFLOAT16)
MAX_MODEL_LEN = LONGEST_PROMPT + OUTPUT_LENGTHS[-1]  # tokens
START_TIMEOUT_S, STOP_TIMEOUT_S = 600.0, 20.0
_SERVING = "torch==2.13.0 transformers fastapi uvicorn[standard] openai rich python-multipart"
# PYTHONPATH would show a peer our packages; thread settings are each server's own default.
_NOT_INHERITED = (
    *("PYTHONPATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    "TORCH_NUM_THREADS",
)
_OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_LISTEN = "--host 127.0.0.1 --port {port}"
MODELS_YAML = """\
models:
  - name: in_flight
    task: text-generation
    model: ./{model}
    dtype: {dtype}
    streaming: {streaming}
    options: {{engine: in_flight, max_model_len: {length}}}
"""
Body = Callable[[Request, str], Mapping[str, Any]]
"""What is sent for a request of the load to a server that knows the model by this name."""


def _tensor(name: str, datatype: str, value: object, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape) or [1], "data": [value]}


def _infer(request: Request, _: str) -> Mapping[str, Any]:
    text = _tensor("text_input", "BYTES", request.prompt)
    asked = _tensor("max_tokens", "INT32", request.max_tokens)
    return {"inputs": [text, asked, _tensor("return_num_output_tokens", "BOOL", True)]}


def _generate_stream(request: Request, _: str) -> Mapping[str, Any]:
    return {"text_input": request.prompt, "max_tokens": request.max_tokens, "stream": True}


def _tutorial(request: Request, _: str) -> Mapping[str, Any]:
    return {"inputs": [_tensor("text_input", "BYTES", request.prompt, 1, 1)]}


def _prompt(request: Request, _: str) -> Mapping[str, Any]:
    return {"prompt": request.prompt, "max_new_tokens": request.max_tokens}


def _completions(request: Request, model: str) -> Mapping[str, Any]:
    asked = {"prompt": request.prompt, "max_tokens": request.max_tokens, "temperature": 0}
    return {"model": model, **asked}


def _completions_stream(request: Request, model: str) -> Mapping[str, Any]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return {**_completions(request, model), **options}


@dataclass(frozen=True)
class Server:
    """One compared server. ``route`` and ``streams`` (None: no streaming) are names in
    load.routes.ROUTES. A peer's ``command`` may hold {model}, {dtype}, {port}, {root}; the server
    is ready when ``health`` answers. Without a command it is a model on tritonserver.
    ``environment`` is its folder among the peers', ``pip`` the packages to install there.
    """

    name: str
    what: str
    route: tuple[str, Body]
    streams: tuple[str, Body] | None = None
    dtypes: tuple[str, ...] = DTYPES
    command: str = ""
    health: str = "/health"
    environment: str = ""
    pip: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    def missing(self, environments: Path) -> str:
        """Says how to install the server where it is missing; else an empty text."""
        folder = environments / self.environment
        if not self.environment or (folder / "bin" / self.command.split(" ", 1)[0]).exists():
            return ""
        return f"python -m venv {folder} && {folder}/bin/pip install {self.pip}"

    def sent(self, request: Request, model: str, *, stream: bool) -> Sent:
        """The body of a request and the expected length of its answer. The tutorial's model repeats
        the prompt and generates the load's longest length for everyone.
        """
        _, body = self.streams if stream and self.streams else self.route
        words = request.max_tokens
        if body is _tutorial:
            words = request.num_prompt_tokens + OUTPUT_LENGTHS[-1]
        return Sent(json.dumps(body(request, model)), request.max_tokens, words)


SERVERS: Sequence[Server] = (
    Server(
        name="ours",
        what="hf-triton generate and tritonserver, the in-flight engine",
        route=("infer", _infer),
        streams=("stream", _generate_stream),
    ),
    Server(
        name="tutorial",
        what="NVIDIA's Hugging Face tutorial on tritonserver: a float16 pipeline, batches of 8",
        route=("infer", _tutorial),
        dtypes=(FLOAT16,),
    ),
    Server(
        name="fastapi",
        what="transformers' text-generation pipeline in a plain endpoint",
        route=("prompt", _prompt),
        dtypes=(FLOAT32,),
        command="uvicorn --app-dir {root} --no-access-log --log-level warning "
        f"{_LISTEN} perf.lab.baselines.pipeline_app:app",
        health="/openapi.json",
        environment="serving",
        pip=_SERVING,
        variables={"MODEL": "{model}"},
    ),
    Server(
        name="transformers-serve",
        what="transformers serve --continuous-batching",
        route=("completions", _completions),
        streams=("completions", _completions_stream),
        # Where sizes are not given, its cache takes most of the machine's memory.
        command="python -m transformers.cli.transformers serve --continuous-batching --device cpu"
        " --dtype {dtype} --attn-implementation sdpa --cb-block-size 32 --cb-num-blocks 2048"
        f" --cb-max-batch-tokens 512 --log-level error {_LISTEN} {{model}}",
        environment="serving",
        pip=_SERVING,
    ),
    Server(
        name="vllm",
        what="vLLM, vllm serve; on a machine without a GPU its CPU build",
        route=("completions", _completions),
        streams=("completions", _completions_stream),
        command=f"vllm serve {{model}} --dtype {{dtype}} --max-model-len {MAX_MODEL_LEN} {_LISTEN}"
        " --disable-uvicorn-access-log",
        environment="vllm",
        pip="vllm",
        # On all cores: its default leaves one to others, and is slower from 32 clients on.
        variables={"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "{cores}"},
    ),
)
BY_NAME = {server.name: server for server in SERVERS}


@dataclass(frozen=True)
class Running:
    """A ready server: its ports, the name it has for the model, its process."""

    port: int
    model: str
    pid: int


@contextmanager
def started(
    server: Server, dtype: str, folder: Path, environments: Path, *, streaming: bool = False
) -> Iterator[Running]:
    """Runs the server for the length of the block; ``folder`` holds the model and receives logs and
    repositories. Raises PerfError, OSError, subprocess.CalledProcessError.
    """
    if missing := server.missing(environments):
        raise PerfError(f"{server.name} is not installed: {missing}")
    log = folder / f"{server.name}-{dtype}.log"
    if server.command:
        home = environments / server.environment
        with _command(server, dtype, folder, home, log) as up:
            yield up
        return
    if server.name == "tutorial":
        repository, models = _tutorial_repository(folder), ["tutorial"]
    else:
        repository = _our_repository(folder, dtype, streaming)
        models = ["in_flight_stream", "in_flight"] if streaming else ["in_flight"]
    with (
        log.open("a", encoding="utf-8") as file,
        serving(repository, *models, write_log=lambda line: print(line, file=file)) as triton,
    ):
        yield Running(triton.listen.http_port, models[-1], triton.pid)


@contextmanager
def _command(server: Server, dtype: str, folder: Path, home: Path, log: Path) -> Iterator[Running]:
    """Starts a peer's command in its own environment."""
    port = free_listen().http_port
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    model = str(folder / MODEL_FOLDER)
    named = {"port": port, "cores": cores, "root": ROOT, "model": model, "dtype": dtype}
    program, *arguments = (word.format(**named) for word in server.command.split(" "))
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    variables = {name: value.format(**named) for name, value in server.variables.items()}
    url = f"http://127.0.0.1:{port}{server.health}"
    command = [str(home.absolute() / "bin" / program), *arguments]
    environment = {**inherited, **_OFFLINE, **variables}
    times = (START_TIMEOUT_S, STOP_TIMEOUT_S)
    with running(command, lambda: _answers(url), log, *times, environment) as pid:
        yield Running(port, model, pid)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def _tutorial_repository(folder: Path) -> Path:
    files, repository = Path(__file__).parent / "tutorial", folder / "tutorial_repository"
    version = repository / "tutorial" / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copy(files / "config.pbtxt", version.parent)
    shutil.copy(files / "model.py", version)
    return repository


def _our_repository(folder: Path, dtype: str, streaming: bool) -> Path:
    """Generates our model repository in ``folder``. Raises CalledProcessError."""
    config, repository = folder / "models.yaml", folder / f"{dtype}_repository"
    named = {"model": MODEL_FOLDER, "dtype": dtype, "streaming": str(streaming).lower()}
    config.write_text(MODELS_YAML.format(**named, length=MAX_MODEL_LEN), encoding="utf-8")
    places = ["--config", str(config), "--repository", str(repository)]
    command = run_module("generator", "generate", "--force", *places)
    subprocess.run(command, check=True, stdout=sys.stderr)
    return repository
