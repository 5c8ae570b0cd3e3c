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
from typing import Any
from urllib.parse import quote

from generator.server.state_file import running_servers
from perf.sweep.scenario.model import Addresses
from perf.sweep.server.metrics import Sample, parse_metrics

_TIMEOUT_S = 5.0
DEFAULT = Addresses("127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002")
_LOCAL = re.compile(r"127\.[\d.]+|localhost|\[::1\]")


class TritonView:
    """One server at its addresses. No call raises where the server does not answer."""

    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine, whose use then tells of it."""
        return bool(_LOCAL.fullmatch(self.addresses.http.rpartition(":")[0]))

    def is_live(self) -> bool:
        return self._get(self.addresses.http, "/v2/health/live") is not None

    def is_ready(self, model: str) -> bool:
        return self._get(self.addresses.http, f"/v2/models/{quote(model)}/ready") is not None

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
        body = self._get(self.addresses.http, f"/v2/models/{quote(model)}/config")
        try:
            found = json.loads(body or b"null")
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def version(self) -> str:
        """Of the server itself; empty where it does not say."""
        body = self._get(self.addresses.http, "/v2")
        return str(json.loads(body).get("version", "")) if body else ""

    def metrics(self) -> list[Sample]:
        """Everything it counts; empty where it does not answer."""
        body = self._get(self.addresses.metrics, "/metrics")
        return parse_metrics(body.decode("utf-8", "replace")) if body else []

    def model_names(self) -> list[str]:
        """Those it has loaded: its metrics name them, without a key."""
        return sorted(
            {
                one.labels["model"]
                for one in self.metrics()
                if one.name == "nv_inference_request_success" and "model" in one.labels
            }
        )

    def answer_to(self, path: str, body: object) -> str:
        """What it says to one request, as text, for an error that perf_analyzer does not tell."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.addresses.http}{path}", data)
        try:
            with self._opener.open(request, timeout=60.0) as response:
                return str(response.read(2000).decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            with error:
                return f"HTTP {error.code}: {error.read(2000).decode('utf-8', 'replace')}"
        except OSError as error:
            return f"nothing: {error}"

    def _get(self, address: str, path: str) -> bytes | None:
        try:
            with self._opener.open(f"http://{address}{path}", timeout=_TIMEOUT_S) as response:
                body: bytes = response.read()
        except (OSError, ValueError):
            return None
        return body


def find_addresses(repository: Any) -> Addresses:
    """Of the server that `hf-triton serve` runs on this repository, else Triton's own ports."""
    return next(_supervised(repository), DEFAULT)


def is_supervised(addresses: Addresses, repository: Any) -> bool:
    """Whether `hf-triton serve` runs it on this repository, and brings it back when it dies."""
    return addresses.http in (one.http for one in _supervised(repository))


def _supervised(repository: Any) -> Iterator[Addresses]:
    for state in running_servers(repository):
        host = f"[{state.host}]" if ":" in state.host else state.host
        ports = (state.http_port, state.grpc_port, state.metrics_port)
        yield Addresses(*(f"{host}:{port}" for port in ports))
