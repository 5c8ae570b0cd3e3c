"""``hf-triton serve --openai-port PORT --triton-url HOST:PORT``: only the OpenAI API, for a Triton
that runs elsewhere.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterable

import uvloop

from generator.errors import EXIT_INTERRUPTED, EXIT_OK
from hf_triton.ports.openai.curl_lines import OpenAiApi, api_of, curl_line
from hf_triton.ports.serving import serve_ports
from hf_triton.ports.settings import Access, OpenAiPort, ProxySettings
from hf_triton.serving.supervision import limits
from hf_triton.tritonserver.listen import Listen


def serve_openai_only(
    listen: Listen, port: OpenAiPort, access: Access, stop_signals: Iterable[signal.Signals]
) -> int:
    """Serves until one of the signals; returns the exit code.

    Raises ServerError where it can't start.
    """
    limits.raise_all()
    settings = ProxySettings(listen, port, access=access)
    shown, triton = api_of(port, listen, access), port.triton_address
    return uvloop.run(_serve(settings, shown, triton, stop_signals))


async def _serve(
    settings: ProxySettings,
    shown: OpenAiApi,
    triton_address: str,
    stop_signals: Iterable[signal.Signals],
) -> int:
    stop = asyncio.Event()

    def ready() -> None:
        page = f", playground {shown.url}/playground" * shown.has_playground
        _say(f"OpenAI API on {shown.url}/v1{page}, for the Triton at {triton_address}")
        print(curl_line(shown.url, "NAME", shown.key_variable), flush=True)

    serving = asyncio.create_task(serve_ports(settings, stop, ready))

    def on_signal() -> None:
        if stop.is_set():
            serving.cancel()
        else:
            _say("stopping after the requests in flight; Ctrl-C again forces it")
            stop.set()

    for number in stop_signals:
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    try:
        await serving
    except asyncio.CancelledError:
        return EXIT_INTERRUPTED
    _say("stopped")
    return EXIT_OK


def _say(text: str) -> None:
    sys.stderr.write(f"hf-triton: {text}\n")
    sys.stderr.flush()
