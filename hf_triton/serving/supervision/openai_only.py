"""``hf-triton serve --openai-port PORT --triton-url HOST:PORT``: only the OpenAI API, for a Triton
that runs elsewhere.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterable, Sequence

from generator.errors import EXIT_INTERRUPTED, EXIT_OK
from hf_triton.ports.openai.child_process import curl_line
from hf_triton.ports.openai.key import VARIABLE, with_key
from hf_triton.ports.openai.process import serve
from hf_triton.ports.openai.settings import Settings
from hf_triton.ports.settings import Access
from hf_triton.serving.supervision import limits
from hf_triton.tritonserver.listen import Listen


def serve_openai_only(
    listen: Listen,
    triton_address: str,
    access: Access,
    key: str | None,
    stop_signals: Iterable[signal.Signals],
    media_hosts: Sequence[str] = (),
    *,
    has_playground: bool = True,
    keep_s: float = Settings.keep_s,
) -> int:
    """Serves until one of the signals; returns the exit code.

    Raises ServerError where it can't start.
    """
    limits.raise_all()
    settings = Settings(
        listen.host,
        listen.openai_port,
        triton_address,
        with_key(access, key),
        media_hosts=tuple(media_hosts),
        has_playground=has_playground,
        keep_s=keep_s,
    )
    scheme = "https" if access.tls else "http"
    url = f"{scheme}://{listen.address(listen.openai_port)}"
    key_variable = access.key_variable if key is None else VARIABLE
    return asyncio.run(_serve(settings, url, key_variable, stop_signals))


async def _serve(
    settings: Settings, url: str, key_variable: str, stop_signals: Iterable[signal.Signals]
) -> int:
    stop = asyncio.Event()

    def ready() -> None:
        page = f", playground {url}/playground" if settings.has_playground else ""
        _say(f"OpenAI API on {url}/v1{page}, for the Triton at {settings.triton_address}")
        print(curl_line(url, "NAME", key_variable), flush=True)

    serving = asyncio.create_task(serve(settings, stop, ready))

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
