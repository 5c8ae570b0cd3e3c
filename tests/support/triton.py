"""Real servers for tests: a models.yaml in, a running tritonserver out."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.errors import ServerError
from generator.render import model_config
from hf_triton.cli.verbs.generate import generate
from hf_triton.tritonserver.http_api import NUM_LOADERS, patiently
from hf_triton.tritonserver.listen import Listen
from hf_triton.tritonserver.process import TritonServer

ROOT = Path(__file__).parents[2]
DEMO_MODEL = ROOT / "demo" / "model"
ADMIN_KEY = "the-admin-key-of-tests"
# A load can keep the thread of the server's that a request landed on.
_ANSWER_TIMEOUT_S = 180.0
_FIRST_PORT = 10_000
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DRAW = random.SystemRandom()  # other runs on this machine draw others
_given_ports: set[int] = set()


def free_ports() -> Listen:
    """Four ports that nobody listens on: Triton's three, and one for the supervisor's health."""
    http, grpc, metrics, health = (_free_port() for _ in range(4))
    return Listen("127.0.0.1", http, grpc, metrics, health_port=health)


def _free_port() -> int:
    """One that was not given before, and that the kernel gives to nobody until it is listened on:
    it is below those that connections, and servers on any port, get.
    """
    end = max(int(_EPHEMERAL_PORTS.read_text().split()[0]), _FIRST_PORT + 10_000)
    while True:
        port = _DRAW.randrange(_FIRST_PORT, end)
        if port not in _given_ports:
            _given_ports.add(port)
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                return port


@dataclass(frozen=True)
class Answer:
    """An HTTP answer: its status, and its body parsed where that is JSON."""

    status: int
    body: Any


def post(url: str, body: object, timeout_s: float = _ANSWER_TIMEOUT_S) -> Answer:
    """Sends ``body`` as JSON, or as it is where it is bytes; an error status is an answer too."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _open(urllib.request.Request(url, data), timeout_s)


def post_for_events(
    url: str, body: object, timeout_s: float = _ANSWER_TIMEOUT_S
) -> tuple[int, list[Any]]:
    """The status and the parsed server-sent events; a body that is JSON itself is the only one."""
    answer = post(url, body, timeout_s)
    if not isinstance(answer.body, str):
        return answer.status, [answer.body]
    events = [line.removeprefix("data: ") for line in answer.body.split("\n\n") if line]
    return answer.status, [json.loads(event) for event in events]


def get(url: str, timeout_s: float = _ANSWER_TIMEOUT_S) -> Answer:
    return _open(urllib.request.Request(url), timeout_s)


def _open(request: urllib.request.Request, timeout_s: float) -> Answer:
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return Answer(response.status, _parsed(response.read()))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, _parsed(error.read()))


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode()


@dataclass(frozen=True)
class Triton:
    """A running server and where it is reached."""

    server: TritonServer
    log: list[str]

    @property
    def http(self) -> str:
        """``host:port``, as tritonclient.http wants it."""
        return self.server.listen.address(self.server.listen.http_port)

    @property
    def grpc(self) -> str:
        """``host:port``, as tritonclient.grpc wants it."""
        return self.server.listen.address(self.server.listen.grpc_port)

    @property
    def metrics_url(self) -> str:
        return f"http://{self.server.listen.address(self.server.listen.metrics_port)}/metrics"

    def url(self, model: str, endpoint: str) -> str:
        """Such as ``http://127.0.0.1:8000/v2/models/demo/generate``."""
        return f"http://{self.http}/v2/models/{model}/{endpoint}"

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a family's numbers on ``/metrics`` that have these labels."""
        marks = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [
            line
            for line in get(self.metrics_url).body.splitlines()
            if line.startswith((f"{name}{{", f"{name} ")) and all(mark in line for mark in marks)
        ]
        assert lines, f"{name} {labels} is not among the metrics"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def control(self, model: str, action: str) -> Answer:
        """Loads or unloads a model."""
        return post(f"http://{self.http}/v2/repository/models/{model}/{action}", {})

    def generate(self, model: str, **body: object) -> Answer:
        return post(self.url(model, "generate"), body)

    def infer(self, model: str, *inputs: Mapping[str, object], **body: object) -> Answer:
        return post(self.url(model, "infer"), {"inputs": inputs, **body})


def load_models(server: TritonServer, models: Iterable[str], timeout_s: float = 600.0) -> None:
    """Loads models, several at once, and returns when all answer. Raises ServerError."""
    files = {model: server.repository / model / "config.pbtxt" for model in models}
    engines = {model: model_config.engine_of(file) for model, file in files.items()}
    steps = {step for file in files.values() for step in model_config.steps_of(file)}

    def load(model: str) -> None:
        for part in filter(None, (engines[model], model)):
            if failure := server.api.load(part):
                raise ServerError(f"model '{model}' failed to load: {failure}")
        if not patiently(lambda: server.api.is_model_ready(model)):
            raise ServerError(f"model '{model}' is loaded, but not ready")

    pool = ThreadPoolExecutor(NUM_LOADERS)
    try:
        list(pool.map(load, files.keys() - {*engines.values(), *steps}, timeout=timeout_s))
    except OSError:
        raise ServerError(server.exit_message("tritonserver died")) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def serving(
    models_yaml: str,
    folder: Path,
    timeout_s: float = 300.0,
    prepare: Callable[[Path], object] = lambda repository: None,
) -> Iterator[Triton]:
    """Generates ``models_yaml`` below ``folder``, serves all its models, and stops gracefully.
    ``prepare`` may change the repository before it starts.
    """
    config = folder / "models.yaml"
    config.write_text(models_yaml, encoding="utf-8")
    repository = folder / "model_repository"
    outcome = generate(config, repository)
    prepare(repository)
    with running(repository) as triton:
        load_models(triton.server, [model.name for model in outcome.plan.models], timeout_s)
        yield triton


@contextlib.contextmanager
def running(repository: Path) -> Iterator[Triton]:
    """Starts a server of ``repository``, with no model yet, and stops it gracefully.

    The whole log is in ``log``, and on stdout for pytest to show with a failure.
    """
    log: list[str] = []

    def keep(line: str) -> None:
        log.append(line)
        print(line)

    server = TritonServer(repository, free_ports(), verbose=True, write_log=keep)
    server.start()
    try:
        yield Triton(server, log)
    except BaseException:
        server.kill()
        raise
    assert server.exit_code() is None, server.exit_message("the server died during the tests")
    assert server.stop() == 0, "the server did not stop gracefully"
    assert not any("Segfault" in line for line in log), "a model's process crashed"


def echo_templates(folder: Path) -> Path:
    """A model_templates/ whose only task is ``echo``."""
    copy_shared(folder)
    copy_task("echo_task", folder / "echo")
    copy_task("echo_front", folder / "front")
    return folder


def copy_shared(folder: Path) -> None:
    """Copies the templates that several tasks share."""
    folder.mkdir(parents=True, exist_ok=True)
    for shared in (ROOT / "model_templates").glob("_*.j2"):
        shutil.copy(shared, folder)


def copy_task(source: str, folder: Path) -> None:
    """Makes a folder beside this one a task's, its model.py the template of generated ones."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(__file__).parent / source, folder, ignore=ignored)
    (folder / "model.py").rename(folder / "model.py.j2")


def eventually(condition: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    """True if ``condition`` comes true in time."""
    deadline, wait_s = time.monotonic() + timeout_s, 0.002
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, 0.05)
    return True
