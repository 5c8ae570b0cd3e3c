"""The server of the soak, and what can be seen of it from outside: memory, threads, gauges."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from generator.server.process import TritonServer
from generator.verbs.generate import generate
from perf.serving import free_listen, write_beside_bar
from perf.soak.draw import DEFAULT_MAX_TOKENS

ROOT = Path(__file__).parents[2]
DEMO_MODEL = ROOT / "demo" / "model"
_SHARED_MEMORY = Path("/dev/shm")
_GAUGES = ("hf_triton_running", "hf_triton_waiting", "hf_triton_kv_slots_used")
_MIB = 2**20

MODELS_YAML = f"""\
defaults:
  task: text-generation
  model: {DEMO_MODEL}
models:
  - name: demo
    options: {{default_max_tokens: {DEFAULT_MAX_TOKENS}}}
  - name: batched
    max_batch_size: 8
    options: {{default_max_tokens: {DEFAULT_MAX_TOKENS}}}
  - name: padded
    max_batch_size: 8
    options: {{engine: generate, default_max_tokens: {DEFAULT_MAX_TOKENS}}}
"""


@dataclass(frozen=True)
class Sample:
    """What a server holds. ``rss_mib`` and ``num_threads`` are by process: ``tritonserver``, and a
    stub under the name of its model.
    """

    seconds: float
    num_answered: int
    rss_mib: dict[str, float]
    num_threads: dict[str, int]
    shared_memory_mib: float
    shared_memory_regions: int


@dataclass
class Served:
    """A running server."""

    server: TritonServer
    started: float = field(default_factory=time.monotonic)

    def sample(self, num_answered: int = 0) -> Sample:
        rss: dict[str, float] = {}
        threads: dict[str, int] = {}
        for process in psutil.Process(self.server.pid).children(recursive=True):
            name = _name_of(process)
            if name:
                rss[name] = round(process.memory_info().rss / _MIB, 1)
                threads[name] = process.num_threads()
        regions = [path.stat() for path in _SHARED_MEMORY.glob(f"{self._prefix}*")]
        return Sample(
            round(time.monotonic() - self.started, 1),
            num_answered,
            dict(sorted(rss.items())),
            dict(sorted(threads.items())),
            round(sum(region.st_blocks * 512 for region in regions) / _MIB, 2),
            len(regions),
        )

    def gauges(self) -> dict[str, float]:
        """Running, waiting and slots used of all models, by the line that ``/metrics`` has."""
        listen = self.server.listen
        url = f"http://{listen.address(listen.metrics_port)}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            lines = response.read().decode().splitlines()
        found = [line.rsplit(" ", 1) for line in lines if line.startswith(_GAUGES)]
        return {name: float(value) for name, value in found}

    def wait_idle(self, timeout_s: float = 60.0) -> dict[str, float]:
        """Waits until every gauge is 0; the gauges that are not, after that time. Raises
        RuntimeError where there are none.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            gauges = self.gauges()
            if not gauges:
                raise RuntimeError("/metrics has no gauge of ours")
            busy = {name: value for name, value in gauges.items() if value}
            if not busy or time.monotonic() > deadline:
                return busy
            time.sleep(0.2)

    @property
    def _prefix(self) -> str:
        """As generator/server/process.py names the regions of its server."""
        prefix: str = self.server._shared_memory_prefix  # noqa: SLF001
        return prefix


def _name_of(process: psutil.Process) -> str:
    """``tritonserver``, or the model of a stub; empty for anything else."""
    try:
        command = process.cmdline()
    except psutil.Error:
        return ""
    if not command:
        return ""
    program = Path(command[0]).name
    if program == "triton_python_backend_stub":
        parts = Path(command[1]).parts
        return parts[-3]  # .../model_repository/demo/1/model.py
    return program if program == "tritonserver" else ""


@contextmanager
def served_demo(folder: Path) -> Iterator[Served]:
    """The demo model on a server in each way it can be served, below ``folder``."""
    config, repository = folder / "models.yaml", folder / "model_repository"
    config.write_text(MODELS_YAML, encoding="utf-8")
    outcome = generate(config, repository)
    with TritonServer(repository, free_listen(), write_log=write_beside_bar) as server:
        server.wait_ready([model.name for model in outcome.plan.models])
        yield Served(server)
