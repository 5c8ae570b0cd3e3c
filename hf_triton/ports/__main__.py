"""The proxy of Triton's ports, HTTP, metrics and gRPC, as the child of ``hf-triton serve``.

    python -m hf_triton.ports    its settings are in the environment

Writes a line to stdout when it listens on all, then a byte a second. Stops at SIGTERM, and at once
when stdin closes: then whoever started it is gone. Its errors are on stderr, and end in 1.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from functools import partial
from itertools import count
from typing import Any

import uvloop

from hf_triton.ports.callers import Callers
from hf_triton.ports.grpc.server import serve_grpc
from hf_triton.ports.http.server import serve_http
from hf_triton.ports.repeats import Repeats
from hf_triton.ports.settings import ProxySettings
from hf_triton.tritonserver.child_process import (
    Parent,
    run_child,
    say_line,
    settings_as,
    tell_ready,
)


def main() -> int:
    """Serves until told to stop; returns the exit code."""
    serve = partial(_serve, settings_as(ProxySettings))
    return run_child("the proxy of Triton's ports", serve, uvloop.run)


async def _serve(settings: ProxySettings, parent: Parent) -> None:
    asyncio.get_running_loop().set_exception_handler(_tell_bug)
    repeats, callers = Repeats(settings.abandoned_requests, say_line), Callers(settings.access)
    parent.follow(repeats.follow)
    both, num_ready = (serve_http, serve_grpc), count(1)

    def note_ready() -> None:
        if next(num_ready) == len(both):
            tell_ready()

    serving = (serve(settings, parent.stop, note_ready, repeats, callers) for serve in both)
    await asyncio.gather(*serving)


def _tell_bug(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Only the place: a message could quote a request."""
    error = context.get("exception")
    frames = traceback.extract_tb(error.__traceback__) if error else None
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
    sys.stderr.write(f"hf-triton: the proxy failed: {type(error).__name__} at {place}\n")


if __name__ == "__main__":
    sys.exit(main())
