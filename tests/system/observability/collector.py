"""An OpenTelemetry collector of one process: takes traces as OTLP/HTTP with JSON, keeps the spans.

https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.http_server import Handler

PATH = "/v1/traces"


@dataclass(frozen=True)
class Span:
    """One part of a trace, with the attributes of its own and of who sent it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]


class Collector:
    """``url`` is where traces go; ``headers`` are those of each delivery."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Span] = []
        self.headers: list[dict[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}{PATH}"

    def trace(self, trace_id: str) -> list[Span]:
        return [span for span in self.spans if span.trace_id == trace_id]

    @contextlib.contextmanager
    def running(self) -> Iterator[Collector]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def _handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    class Traces(Handler, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.headers.append(dict(self.headers))
            self.answer(200 if self.path == PATH else 404)
            if self.path == PATH:
                collector.spans += _spans(json.loads(body))

    return Traces


def _spans(body: Any) -> list[Span]:
    return [
        Span(
            span["name"],
            span["traceId"],
            span["spanId"],
            span.get("parentSpanId", ""),
            {**_attributes(resource["resource"]), **_attributes(span)},
        )
        for resource in body["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def _attributes(holder: Any) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in holder.get("attributes", [])}
