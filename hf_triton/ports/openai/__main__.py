"""The translator as the child of ``hf-triton serve``.

    python -m hf_triton.ports.openai

Its settings are in the environment; the repository's record says which models are to be served.
Writes a line to stdout when it listens, then a byte a second. Stops at SIGTERM, and at once when
stdin closes: then whoever started it is gone. Its errors are on stderr, and end in 1.
"""

from __future__ import annotations

import logging
import sys
from functools import partial

from hf_triton.ports.openai.process import serve
from hf_triton.ports.openai.settings import Settings
from hf_triton.ports.repeats import Repeats
from hf_triton.tritonserver.child_process import (
    Parent,
    run_child,
    say_line,
    settings_as,
    tell_ready,
)


def main() -> int:
    """Serves until told to stop; returns the exit code."""
    settings = settings_as(Settings)
    if settings.verbose:
        logging.basicConfig(format="hf-triton: the OpenAI API: %(message)s")
        logging.getLogger("hf_triton.ports").setLevel(logging.DEBUG)
    return run_child("the OpenAI API", partial(_serve, settings))


async def _serve(settings: Settings, parent: Parent) -> None:
    repeats = Repeats(settings.abandoned_requests, say_line)
    parent.follow(repeats.follow)
    await serve(settings, parent.stop, tell_ready, repeats)


if __name__ == "__main__":
    sys.exit(main())
