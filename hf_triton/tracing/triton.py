"""Traces as the tritonserver that runs this process makes them, and what goes on with them here."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_triton.version import pip_install

if TYPE_CHECKING:
    from .tracer import Tracer

# W3C's, of a request that is to be traced: its trace, and Triton's span of it.
TRACEPARENT = r"00-[0-9a-f]{32}-[0-9a-f]{16}-01"
_COLLECTOR = re.compile(r"opentelemetry,url=([^\0]+)(?:.*\bservice\.name=([^\0]+))?", re.DOTALL)


@functools.cache
def collector() -> tuple[str, str] | None:
    """The URL that Triton sends traces to, and the service's name there, as its command line says;
    None where it sends none.
    """
    flags = Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8", errors="replace")
    found = _COLLECTOR.search(flags)
    return (found[1], found[2] or "") if found else None


def start_tracer(model: str, task: str, warn: Callable[[str], None]) -> Tracer | None:
    """A tracer to Triton's own collector; None where there is none, or with a warning no SDK."""
    if (found := collector()) is None:
        return None
    try:
        from opentelemetry.exporter.otlp.json.http import OTLPSpanExporter

        from .tracer import Tracer
    except ImportError as error:
        warn(f"tracing: only Triton's own spans, for {error}: {pip_install('tracing')}")
        return None
    url, service = found
    return Tracer(model, task, service, OTLPSpanExporter(url))


def traceparent_of(request: Any) -> str:
    """The place of Triton's span of one of its requests; empty where it is not traced."""
    context = request.trace().get_context() if collector() else None
    traceparent = json.loads(context).get("traceparent", "") if context else ""
    return traceparent if re.fullmatch(TRACEPARENT, traceparent) else ""
