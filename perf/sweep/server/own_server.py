"""``serve: true``: a server of the sweep's own, by ``hf-triton serve`` on free ports."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from generator.errors import PerfError
from generator.models_yaml.reading import load_unpinned
from generator.python_modules import run_module
from generator.spec.task_folders import find_tasks
from generator.spec.triton_models import triton_models
from generator.yaml_file.schema import did_you_mean
from perf.orphans import end, ends_with_us, our_environment
from perf.serving import free_listen
from perf.sweep.scenario.model import Addresses
from perf.sweep.server.triton import TritonView, addresses_of

LOG_FILE = "serve.log"
_LOAD_TIMEOUT_S = 1800.0
_STOP_TIMEOUT_S = 90.0
_NUM_LAST_LINES = 8  # of the log, in an error


def models_to_load(config: Path, names: Sequence[str]) -> list[str]:
    """Triton's models of those of models.yaml. Raises PerfError, SpecError."""
    specs = {spec.name: spec for spec in load_unpinned(config, find_tasks())}
    for name in names:
        if name not in specs:
            hint = did_you_mean(name, specs, "models")
            raise PerfError(f"{config} has no model '{name}'{hint}")
    return [model.name for name in names for model in triton_models(specs[name])]


@contextlib.contextmanager
def own_server(
    config: Path, repository: Path, folder: Path, models: Sequence[str]
) -> Iterator[Addresses]:
    """Serves while the block runs; its log is ``serve.log`` in ``folder``.

    Raises PerfError where it does not start, or ends before ``models`` are ready.
    """
    listen, log = free_listen(), folder / LOG_FILE
    command = run_module("generator", "serve", "--health-port", "0")
    command += ["--config", str(config), "--repository", str(repository)]
    for flag, port in listen.triton_ports().items():
        command += [flag, str(port)]
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C of the terminal is ours to pass on
            preexec_fn=ends_with_us(signal.SIGTERM),
            env=our_environment(),
        )
    try:
        _wait_ready(process, TritonView(addresses_of(listen)), models, log)
        yield addresses_of(listen)
    finally:
        end(process, _STOP_TIMEOUT_S)  # tritonserver ends when who started it does


def _wait_ready(
    process: subprocess.Popen[bytes], server: TritonView, models: Sequence[str], log: Path
) -> None:
    deadline = time.monotonic() + _LOAD_TIMEOUT_S
    while not server.wait_ready(list(models), 0.0):
        if process.poll() is not None:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            last = "\n".join(f"    {line}" for line in lines[-_NUM_LAST_LINES:])
            raise PerfError(f"hf-triton serve ended; {log} ends with:\n{last}")
        if time.monotonic() > deadline:
            raise PerfError(f"the models were not ready after {_LOAD_TIMEOUT_S:.0f} s; see {log}")
        time.sleep(0.5)
