"""The translator as the child of ``hf-triton serve``.

    python -m hf_triton.ports.openai

Its settings are in the environment; the repository's record says which models are to be served.
Writes a line to stdout when it listens, then a byte a second. Stops at SIGTERM, and at once when
stdin closes: then whoever started it is gone. Its errors are on stderr, and end in 1.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from generator.errors import EXIT_OK, GeneratorError
from hf_triton.ports.openai.process import serve
from hf_triton.ports.openai.settings import VARIABLE, Settings
from hf_triton.tritonserver.child_process import end_with_parent, tell_ready


def main() -> int:
    """Serves until told to stop; returns the exit code."""
    end_with_parent()
    settings = Settings.from_text(os.environ.pop(VARIABLE))
    if settings.verbose:
        logging.basicConfig(format="hf-triton: the OpenAI API: %(message)s")
        logging.getLogger("hf_triton.ports").setLevel(logging.DEBUG)
    try:
        asyncio.run(_serve(settings))
    except GeneratorError as error:
        sys.stderr.write(f"hf-triton: the OpenAI API: {error}\n")
        return error.exit_code
    return EXIT_OK


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await serve(settings, stop, tell_ready)


if __name__ == "__main__":
    sys.exit(main())
