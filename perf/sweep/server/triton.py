"""A running Triton as a sweep sees it, over plain HTTP: is it there, what does it serve, what does
it count. Changes nothing on it and sends no key.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlparse

from generator.spec.access import bracketed
from hf_triton.tritonserver.listen import Listen
from hf_triton.tritonserver.state_file import running_servers
from perf.sweep.scenario.model import Addresses
from perf.sweep.server.metrics import Sample, parse_metrics

_TIMEOUT_S = 5.0
DEFAULT = Addresses("127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002")
_LOCAL = re.compile(r"127\.[\d.]+|localhost|\[::1\]")
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class TritonView:
    """One server at its addresses. No call raises where the server does not answer."""

    addresses: Addresses

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine, whose use then tells of it."""
        return bool(_LOCAL.fullmatch(self.addresses.http.rpartition(":")[0]))

    @property
    def http_port(self) -> int:
        return urlparse(f"//{self.addresses.http}").port or 0

    def is_live(self) -> bool:
        return self._get("/v2/health/live") is not None

    def is_ready(self, model: str) -> bool:
        return self._get(f"/v2/models/{quote(model)}/ready") is not None

    def wait_ready(self, models: list[str], timeout_s: float) -> bool:
        """Whether all are, in time."""
        deadline = time.monotonic() + timeout_s
        while not all(self.is_ready(model) for model in models):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True

    def config(self, model: str) -> dict[str, Any] | None:
        """Triton's ModelConfig of it as JSON has it; None where there is no such model."""
        try:
            found = json.loads(self._get(f"/v2/models/{quote(model)}/config") or b"null")
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def version(self) -> str:
        """The server's own version; empty where it does not say."""
        return str(json.loads(self._get("/v2") or b"{}").get("version", ""))

    def metrics(self) -> list[Sample]:
        """Everything it counts; empty where it does not answer."""
        body = self._get("/metrics", self.addresses.metrics) or b""
        return parse_metrics(body.decode("utf-8", "replace"))

    def model_names(self) -> list[str]:
        """Those it has loaded: its metrics name them, without a key."""
        counted = (one for one in self.metrics() if one.name == "nv_inference_request_success")
        return sorted({one.labels["model"] for one in counted if "model" in one.labels})

    def answer_to(self, path: str, body: object) -> str:
        """What it says to one request, as text, for an error that perf_analyzer does not tell."""
        url, data = f"http://{self.addresses.http}{path}", json.dumps(body).encode()
        try:
            with _OPENER.open(urllib.request.Request(url, data), timeout=60.0) as response:
                return str(response.read(2000).decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            with error:
                return f"HTTP {error.code}: {error.read(2000).decode('utf-8', 'replace')}"
        except OSError as error:
            return f"nothing: {error}"

    def _get(self, path: str, address: str | None = None) -> bytes | None:
        url = f"http://{address or self.addresses.http}{path}"
        try:
            with _OPENER.open(url, timeout=_TIMEOUT_S) as response:
                body: bytes = response.read()
        except (OSError, ValueError):
            return None
        return body


def addresses_of(listen: Listen) -> Addresses:
    """The addresses of a server on this machine."""
    return Addresses(*map(listen.address, listen.triton_ports().values()))


def find_addresses(repository: Path) -> Addresses:
    """Those of the server that `hf-triton serve` runs on this repository, else Triton's own."""
    return next(_supervised(repository), DEFAULT)


def is_supervised(addresses: Addresses, repository: Path) -> bool:
    """Whether `hf-triton serve` runs it on this repository, and brings it back when it dies."""
    return addresses.http in (one.http for one in _supervised(repository))


def _supervised(repository: Path) -> Iterator[Addresses]:
    for state in running_servers(repository):
        ports = (state.http_port, state.grpc_port, state.metrics_port)
        yield Addresses(*(f"{bracketed(state.host)}:{port}" for port in ports))
