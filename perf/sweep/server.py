"""Asks a running Triton over plain HTTP, without a key, or starts one for the sweep."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from google.protobuf.json_format import ParseError

from generator.errors import PerfError
from generator.models_yaml.reading import load_unpinned, named
from generator.python_modules import run_module
from generator.render.model_config import from_dict
from generator.spec.triton_models import triton_models
from hf_triton.serving.apply.target import running_target
from hf_triton.tritonserver.http_api import Sample, parse_metrics
from hf_triton.tritonserver.state_file import running_servers
from perf.processes import body_of, free_listen, our_environment, running
from perf.sweep.scenario import Addresses

TIMEOUT_S = 5.0
DEFAULT = Addresses("127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002")
_LOCAL = re.compile(r"127\.[\d.]+|localhost|\[::1\]")
_LOG_FILE = "serve.log"
_LOAD_TIMEOUT_S, _STOP_TIMEOUT_S = 1800.0, 90.0


@dataclass(frozen=True)
class TritonView:
    """One server at its addresses. No method raises when the server does not answer."""

    addresses: Addresses

    @property
    def is_local(self) -> bool:
        """The server runs on this machine, whose CPU and memory use is then recorded."""
        return bool(_LOCAL.fullmatch(self.addresses.http.rpartition(":")[0]))

    def is_live(self) -> bool:
        return self._get("/v2/health/live") is not None

    def is_ready(self, model: str) -> bool:
        return self._get(f"/v2/models/{quote(model)}/ready") is not None

    def wait_ready(self, models: Sequence[str], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not all(self.is_ready(model) for model in models):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True

    def config(self, model: str) -> Any:
        """The model's ModelConfig, for which an ``on_demand`` model is loaded; None if the server
        has no such model.
        """
        body = self._get(f"/v2/models/{quote(model)}/config", timeout_s=_LOAD_TIMEOUT_S)
        with contextlib.suppress(ValueError, TypeError, ParseError):
            return from_dict(json.loads(body or b""))
        return None

    def version(self) -> str:
        return str(json.loads(self._get("/v2") or b"{}").get("version", ""))

    def metrics(self) -> list[Sample]:
        body = self._get("/metrics", address=self.addresses.metrics) or b""
        return parse_metrics(body.decode("utf-8", "replace"))

    def _get(
        self, path: str, *, address: str | None = None, timeout_s: float | None = None
    ) -> bytes | None:
        return body_of(f"http://{address or self.addresses.http}{path}", timeout_s or TIMEOUT_S)


def supervised(repository: Path) -> Iterator[Addresses]:
    for state in running_servers(repository):
        yield Addresses(*map(state.address, state.triton_ports().values()))


@contextlib.contextmanager
def own_server(
    config: Path, repository: Path, folder: Path, names: Sequence[str]
) -> Iterator[Addresses]:
    """Runs `hf-triton serve` on free ports, these models ready, and those with ``load: manual``
    loaded. Raises GeneratorError.
    """
    specs = load_unpinned(config)
    wanted = [named(specs, name, config) for name in names]
    models = [model for spec in wanted for model in triton_models(spec)]
    by_hand = [model.name for model in models if model.spec.load == "manual" and not model.is_step]
    others = [model.name for model in models if model.spec.load != "manual"]
    listen, log = free_listen(), folder / _LOG_FILE
    addresses = Addresses(*map(listen.address, listen.triton_ports().values()))
    command = run_module("hf_triton.cli", "serve", "--health-port", "0")
    command += ["--config", str(config), "--repository", str(repository)]
    for flag, port in listen.triton_ports().items():
        command += [flag, str(port)]
    server = TritonView(addresses)

    def is_ready() -> bool:
        return addresses in supervised(repository) and server.wait_ready(others, 0.0)

    with running(
        command,
        is_ready,
        log,
        _LOAD_TIMEOUT_S,
        _STOP_TIMEOUT_S,  # tritonserver ends with the process that started it
        our_environment(),
    ):
        for name in by_hand[::-1]:  # a front after its engine; Triton loads an ensemble's steps
            failure = running_target(repository, listen.http_port).api.load(name)
            if failure or not server.is_ready(name):
                raise PerfError(f"model '{name}' failed to load: {failure or 'it is not ready'}")
        yield addresses
