"""The servers that are compared, a row each; how each is started, as people do it.

A peer that is one command runs in a Python environment of its own, which the user makes: ``pip``
says of what.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from generator.errors import PerfError
from generator.python_modules import run_module
from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS
from perf.orphans import end, ends_with_us
from perf.serving import free_listen, serving

ROOT = Path(__file__).parents[3]
MODEL_FOLDER = "llama-42m"  # named in tutorial/config.pbtxt too
FLOAT32, BFLOAT16, FLOAT16 = "float32", "bfloat16", "float16"
DTYPES = (FLOAT32, BFLOAT16)
MAX_MODEL_LEN = LONGEST_PROMPT + OUTPUT_LENGTHS[-1]  # tokens
START_TIMEOUT_S, STOP_TIMEOUT_S = 600.0, 20.0
_SERVING = "torch==2.13.0 transformers fastapi uvicorn[standard] openai rich python-multipart"
# PYTHONPATH would show a peer our packages; every server takes the threads it takes by itself.
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


@dataclass(frozen=True)
class Server:
    """``sent`` and ``streamed`` (None: it has no streams) are of load.targets.TARGETS. A peer's
    ``command`` may hold {model}, {dtype}, {port}, {root}; it is up when ``health`` answers. Without
    one it is a model on tritonserver. ``environment`` is the name of its folder among the peers',
    ``pip`` what pip installs there.
    """

    name: str
    what: str
    sent: str
    streamed: str | None = None
    dtypes: tuple[str, ...] = DTYPES
    command: str = ""
    health: str = "/health"
    environment: str = ""
    pip: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    def missing(self, environments: Path) -> str:
        """How to install it, where it is not; else empty."""
        folder = environments / self.environment
        if not self.environment or (folder / "bin" / self.command.split(" ", 1)[0]).exists():
            return ""
        return f"python -m venv {folder} && {folder}/bin/pip install {self.pip}"

    @property
    def endpoint(self) -> str:
        return "http-infer" if not self.command else f"http-{self.sent}"


SERVERS: Sequence[Server] = (
    Server("ours", "hf-triton generate and tritonserver, the in-flight engine", "in-flight", "sse"),
    Server(
        name="tutorial",
        what="NVIDIA's Hugging Face tutorial on tritonserver: a float16 pipeline, batches of 8",
        sent="tutorial",
        dtypes=(FLOAT16,),
    ),
    Server(
        name="fastapi",
        what="transformers' text-generation pipeline in a plain endpoint",
        sent="prompt",
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
        sent="completions",
        streamed="completions-stream",
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
        sent="completions",
        streamed="completions-stream",
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
    """One that is up: the ports that answer, its name for a model, its process."""

    port: int
    model: str
    pid: int


@contextmanager
def started(
    server: Server, dtype: str, folder: Path, environments: Path, *, streaming: bool = False
) -> Iterator[Running]:
    """Up for as long as the block; ``folder`` holds the model, and gets logs and repositories.

    Raises PerfError, OSError, subprocess.CalledProcessError.
    """
    if missing := server.missing(environments):
        raise PerfError(f"{server.name} is not installed: {missing}")
    log = folder / f"{server.name}-{dtype}.log"
    if server.command:
        home = environments / server.environment
        with _command(server, dtype, folder, home, log) as running:
            yield running
        return
    if server.name == "tutorial":
        repository, model = _tutorial(folder), "tutorial"
    else:
        repository, model = _ours(folder, dtype, streaming), "in_flight"
    models = ["in_flight_stream", "in_flight"] if streaming and model == "in_flight" else [model]
    with (
        log.open("a", encoding="utf-8") as file,
        serving(repository, *models, write_log=lambda line: print(line, file=file)) as triton,
    ):
        yield Running(triton.listen.http_port, model, triton.pid)


@contextmanager
def _command(server: Server, dtype: str, folder: Path, home: Path, log: Path) -> Iterator[Running]:
    """A peer that is one command, in its own environment."""
    port = free_listen().http_port
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    model = str(folder / MODEL_FOLDER)
    named = {"port": port, "cores": cores, "root": ROOT, "model": model, "dtype": dtype}
    program, *arguments = (word.format(**named) for word in server.command.split(" "))
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    variables = {name: value.format(**named) for name, value in server.variables.items()}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(home.absolute() / "bin" / program), *arguments],
            cwd=folder,
            env={**inherited, **_OFFLINE, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=ends_with_us(signal.SIGTERM),
        )
    try:
        _wait_ready(process, f"http://127.0.0.1:{port}{server.health}", log)
        yield Running(port, model, process.pid)
    finally:
        end(process, STOP_TIMEOUT_S)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Waits until ``url`` answers. Raises PerfError with the last line of the log."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:  # noqa: PERF203, until it answers
            time.sleep(0.2)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise PerfError(f"{log.stem} did not start: {lines[-1] if lines else 'it printed nothing'}")


def _tutorial(folder: Path) -> Path:
    """The tutorial's repository in ``folder``."""
    files, repository = Path(__file__).parent / "tutorial", folder / "tutorial_repository"
    version = repository / "tutorial" / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copy(files / "config.pbtxt", version.parent)
    shutil.copy(files / "model.py", version)
    return repository


def _ours(folder: Path, dtype: str, streaming: bool) -> Path:
    """The repository that ``hf-triton generate`` makes in ``folder``. Raises CalledProcessError."""
    config, repository = folder / "models.yaml", folder / f"{dtype}_repository"
    named = {"model": MODEL_FOLDER, "dtype": dtype, "streaming": str(streaming).lower()}
    config.write_text(MODELS_YAML.format(**named, length=MAX_MODEL_LEN), encoding="utf-8")
    places = ["--config", str(config), "--repository", str(repository)]
    command = run_module("generator", "generate", "--force", *places)
    subprocess.run(command, check=True, stdout=sys.stderr)
    return repository
