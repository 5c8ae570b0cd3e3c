"""Makes spans of requests that have ended, under Triton's own, and sends them by OpenTelemetry's
SDK, on a thread of the SDK's. Makes them as its exporters read them: its own way takes seven times
as long.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from .trace import Trace

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_CLOSE_S = 2.0
# OpenTelemetry's names; it has none for other tasks.
_OPERATIONS = {"feature-extraction": "embeddings", "text-generation": "text_completion"}


class Tracer:
    """Traces requests to ``model``, served for ``task``."""

    def __init__(self, model: str, task: str, service: str, exporter: SpanExporter) -> None:
        self._model, self._operation = model, _OPERATIONS.get(task, task)
        self._resource = Resource.create({"service.name": service} if service else {})
        self._processor, self._ids = BatchSpanProcessor(exporter), RandomIdGenerator()

    def send(self, trace: Trace, error: Exception | None, *, is_chat: bool = False) -> None:
        """Sends the spans of a request that was answered now, with its error if any. Does not
        block; a collector that can't be reached loses them.
        """
        _, trace_id, parent_id, _ = trace.traceparent.split("-")
        parent = self._place(trace_id, int(parent_id, 16))
        own = self._place(trace_id)
        for span in trace.spans:
            self._end(span, self._place(trace_id), own)
        operation = "chat" if is_chat else self._operation
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "hf_triton",
            "gen_ai.request.model": self._model,
            **trace.attributes,
        }
        if error is not None:  # whose text may quote the request
            attributes["error.type"] = getattr(error, "status", "INTERNAL")
        status = Status(StatusCode.ERROR if error else StatusCode.UNSET)
        whole = f"{operation} {self._model}", trace.began_s, time.monotonic()
        self._end(whole, own, parent, attributes=attributes, status=status)

    def close(self) -> None:
        """Sends what is left, if that takes a moment only."""
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)

    def _place(self, trace_id: str, span_id: int = 0) -> SpanContext:
        """A span's place in a trace; a new one's without ``span_id``."""
        span_id = span_id or self._ids.generate_span_id()
        return SpanContext(int(trace_id, 16), span_id, False, _SAMPLED)

    def _end(
        self, span: tuple[str, float, float], own: SpanContext, parent: SpanContext, **more: Any
    ) -> None:
        """Sends a span, with its place and its parent's."""
        name, began_s, ended_s = span
        to_wall_s = time.time() - time.monotonic()
        start, end = (int((to_wall_s + at_s) * 1e9) for at_s in (began_s, ended_s))
        more = {"start_time": start, "end_time": end, **more}
        self._processor.on_end(ReadableSpan(name, own, parent, self._resource, **more))
