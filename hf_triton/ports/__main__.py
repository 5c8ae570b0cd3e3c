"""The ports, Triton's and OpenAI's, as the child of ``hf-triton serve``.

    python -m hf_triton.ports    its settings are in the environment

Writes a line to stdout when it listens on all, then an empty one a second. Stops at SIGTERM, and at
once when stdin closes: then whoever started it is gone. Its errors are on stderr, and end in 1.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from functools import partial
from typing import Any

import uvloop

from hf_triton.ports.retries import RetryCoordinator
from hf_triton.ports.serving import serve_ports
from hf_triton.ports.settings import ProxySettings
from hf_triton.tritonserver.child_process import (
    Parent,
    run_child,
    say_line,
    settings_as,
    tell_ready,
)

_SWITCH_S = 0.001  # after which a thread that reads a large body lets the event loop go on


def main() -> int:
    settings = settings_as(ProxySettings)
    sys.setswitchinterval(_SWITCH_S)
    return run_child("the ports' process", partial(_serve, settings), uvloop.run)


async def _serve(settings: ProxySettings, parent: Parent) -> None:
    asyncio.get_running_loop().set_exception_handler(_report_bug)
    retries = RetryCoordinator(settings.abandoned_requests, say_line)
    parent.follow(retries.follow)
    await serve_ports(settings, parent.stop, tell_ready, retries)


def _report_bug(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Only the place: a message could quote a request."""
    error = context.get("exception")
    frames = traceback.extract_tb(error.__traceback__) if error else None
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
    sys.stderr.write(f"hf-triton: the ports' process failed: {type(error).__name__} at {place}\n")


if __name__ == "__main__":
    sys.exit(main())
