"""A Triton as far as a sweep goes: health, a model's config, metrics."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from perf.sweep.scenario import Addresses
from tests.support.http_server import Handler, serving_http


def config(decoupled: bool = False, max_batch_size: int = 0) -> dict[str, Any]:
    """As ``/v2/models/M/config`` answers."""
    names = {"text_input": "TYPE_STRING", "max_tokens": "TYPE_INT32", "stream": "TYPE_BOOL"}
    names |= dict.fromkeys(("return_num_output_tokens", "return_finish_reason"), "TYPE_BOOL")
    return {
        "max_batch_size": max_batch_size,
        "model_transaction_policy": {"decoupled": decoupled},
        "input": [
            {"name": name, "data_type": kind, "dims": [1], "optional": True}
            for name, kind in names.items()
        ],
        "unknown_to_us": 1,
    }


@dataclass
class FakeTriton:
    """``models`` are served by their configs; ``is_up``: whether it answers, until ``/die``."""

    models: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {"demo": config(), "demo_stream": config(decoupled=True)}
    )
    is_up: bool = True
    port: int = 0

    @property
    def addresses(self) -> Addresses:
        """HTTP and metrics share a port; nothing answers gRPC."""
        here = f"127.0.0.1:{self.port}"
        return Addresses(here, here, here)

    def answer(self, path: str) -> tuple[int, bytes]:
        parts = path.strip("/").split("/")
        if path == "/metrics":
            lines = (f'nv_inference_request_success{{model="{name}"}} 1' for name in self.models)
            return 200, "\n".join(lines).encode()
        if path == "/die":
            self.is_up = False
            return 200, b""
        if path in ("/v2/health/live", "/v2"):
            return 200, b'{"version": "2.51.0"}'
        if parts[:2] == ["v2", "models"] and parts[2] in self.models:
            found = self.models[parts[2]] if parts[-1] == "config" else {}
            return 200, json.dumps(found).encode()
        return 404, b"{}"


def _handler(fake: FakeTriton) -> type[BaseHTTPRequestHandler]:
    class Endpoints(Handler, BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if not fake.is_up:
                self.close_connection = True
                return
            status, body = fake.answer(self.path)
            self.answer(status, body)

    return Endpoints


@contextlib.contextmanager
def fake_triton() -> Iterator[FakeTriton]:
    """Serves while the block runs."""
    fake = FakeTriton()
    with serving_http(_handler(fake)) as fake.port:
        yield fake
