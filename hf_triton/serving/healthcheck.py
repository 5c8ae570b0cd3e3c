"""``python -m hf_triton.serving.healthcheck``: the images' health check. Asks the supervisor's
health port, HEALTH_PORT.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4.0


def why_unready(port: str) -> str:
    """The reason why the server is not ready for requests, or an empty text."""
    url = f"http://127.0.0.1:{port}/ready"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it asks this machine
    try:
        with opener.open(url, timeout=TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return f"{url}: {error.code} {error.read(2000).decode(errors='replace')}".strip()
    except OSError as error:
        return f"{url}: {error}"


if __name__ == "__main__":
    reason = why_unready(os.environ.get("HEALTH_PORT", "8003"))
    if reason:
        print(reason)
        sys.exit(1)
