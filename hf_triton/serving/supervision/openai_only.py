"""``hf-triton serve --openai-port PORT --triton-url HOST:PORT``: only OpenAI's API, for a Triton
that runs elsewhere.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable

import uvloop

from generator.errors import EXIT_INTERRUPTED, EXIT_OK
from hf_triton.ports.openai.curl_lines import api_of
from hf_triton.ports.serving import serve_ports
from hf_triton.ports.settings import Access, OpenAiPort, ProxySettings
from hf_triton.serving.supervision import limits
from hf_triton.serving.supervision.public_ports import say
from hf_triton.tritonserver.listen import Listen


def serve_openai_only(
    listen: Listen, port: OpenAiPort, access: Access, stop_signals: Iterable[signal.Signals]
) -> int:
    """Serves until one of the signals; returns the exit code. Raises ServerError."""
    limits.raise_all()
    return uvloop.run(_serve(listen, port, access, stop_signals))


async def _serve(
    listen: Listen, port: OpenAiPort, access: Access, stop_signals: Iterable[signal.Signals]
) -> int:
    settings = ProxySettings(listen, port, access=access)
    api = api_of(port, listen, access)
    stop = asyncio.Event()

    def ready() -> None:
        page = f", playground {api.url}/playground" * api.has_playground
        say(f"OpenAI API on {api.url}/v1{page}, for the Triton at {port.triton_address}")
        print(api.curl_line("NAME"), flush=True)

    serving = asyncio.create_task(serve_ports(settings, stop, ready))

    def on_signal() -> None:
        if stop.is_set():
            serving.cancel()
        else:
            say("stopping after the requests in flight; Ctrl-C again forces it")
            stop.set()

    for number in stop_signals:
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    try:
        await serving
    except asyncio.CancelledError:
        return EXIT_INTERRUPTED
    say("stopped")
    return EXIT_OK
