"""The ports, Triton's and OpenAI's, as the child of ``hf-triton serve``.

    python -m hf_triton.ports    its settings are in the environment

Writes a line to stdout when it listens on all, then an empty one a second. Stops at SIGTERM, and at
once when stdin closes: then whoever started it is gone. Its errors are on stderr, and end in 1.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial

import uvloop

from hf_triton.ports.refusal import report_bug
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
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: report_bug("the ports' process failed", context.get("exception"))
    )
    retries = RetryCoordinator(settings.abandoned_requests, say_line, settings.repository)
    parent.follow(retries.follow)
    await serve_ports(settings, parent.stop, tell_ready, retries)


if __name__ == "__main__":
    sys.exit(main())
