"""``python -m hf_triton.serving.healthcheck``: the images' health check.

Asks the supervisor's health port, HEALTH_PORT; in a container that runs tritonserver alone nobody
listens there, and Triton itself is asked, at HTTP_PORT.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping

TIMEOUT_S = 4.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it asks this machine


def why_unready(environment: Mapping[str, str]) -> str:
    """Empty where the server is ready for requests."""
    health_port = environment.get("HEALTH_PORT", "8003")
    http_port = environment.get("HTTP_PORT", "8000")
    try:
        return _ask(f"http://127.0.0.1:{health_port}/ready")
    except ConnectionRefusedError:
        pass  # tritonserver alone
    except OSError as error:
        return f"port {health_port}: {error}"
    try:
        # It loads all before it answers; from 26.0x on it is not ready where one of many is not.
        return _ask(f"http://127.0.0.1:{http_port}/v2/health/live")
    except OSError as error:
        return f"neither port {health_port} nor {http_port} answers: {error}"


def _ask(url: str) -> str:
    """Empty for a good answer, else what it says. Raises OSError where there is none."""
    try:
        with _OPENER.open(url, timeout=TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return f"{url}: {error.code} {error.read(2000).decode(errors='replace')}".strip()
    except urllib.error.URLError as error:
        raise error.reason if isinstance(error.reason, OSError) else error from None


if __name__ == "__main__":
    reason = why_unready(os.environ)
    if reason:
        print(reason)
        sys.exit(1)
