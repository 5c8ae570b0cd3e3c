"""A proxy as the child of ``hf-triton serve``.

    python -m hf_triton.ports http|grpc    its settings are in the environment

Writes a line to stdout when it listens, then a byte a second. Stops at SIGTERM, and at once when
stdin closes: then whoever started it is gone. Its errors are on stderr, and end in 1.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from functools import partial
from typing import Any

import uvloop

from hf_triton.ports.repeats import Repeats
from hf_triton.ports.settings import ProxySettings
from hf_triton.tritonserver.child_process import (
    Parent,
    run_child,
    say_line,
    settings_as,
    tell_ready,
)


def main(kind: str) -> int:
    """Serves until told to stop; returns the exit code."""
    serve = partial(_serve, kind, settings_as(ProxySettings))
    return run_child(f"the proxy of Triton's {kind} port", serve, uvloop.run)


async def _serve(kind: str, settings: ProxySettings, parent: Parent) -> None:
    # Imported here: one needs no gRPC, the other no HTTP.
    asyncio.get_running_loop().set_exception_handler(_tell_bug)
    repeats = Repeats(settings.abandoned_requests, say_line)
    parent.follow(repeats.follow)
    if kind == "http":
        from hf_triton.ports.http.server import serve_http

        await serve_http(settings, parent.stop, tell_ready, repeats)
    else:
        from hf_triton.ports.grpc.server import serve_grpc

        await serve_grpc(settings, parent.stop, tell_ready, repeats)


def _tell_bug(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Only the place: a message could quote a request."""
    error = context.get("exception")
    frames = traceback.extract_tb(error.__traceback__) if error else None
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
    sys.stderr.write(f"hf-triton: the proxy failed: {type(error).__name__} at {place}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
