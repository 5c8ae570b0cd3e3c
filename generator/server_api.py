"""The few calls of Triton's HTTP API that starting a server needs; knows no process.

https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.parse
from dataclasses import dataclass

# A Python model's exception ends in the place it came from, over several lines.
_TRACEBACK = re.compile(r"\s*\n\s*At:\n.*", re.DOTALL)
_PREFIXES = re.compile(
    r"load failed for model '[^']*': |ensemble '[^']*' depends on '[^']*' which has no loaded "
    r"version\. Model '[^']*' loading failed with error: |version \d+ is at UNAVAILABLE state: "
    r"|Internal: |(c_python_backend_utils\.)?TritonModelException: "
)

_NO_BACKEND = re.compile(r"unable to find backend library for backend '([^']*)'")


@dataclass(frozen=True)
class ServerApi:
    """A server's HTTP endpoint. Every call raises OSError where the server can't be reached."""

    host: str
    port: int

    def is_live(self) -> bool:
        """Whether the server answers at all."""
        return self._call("GET", "/v2/health/live", timeout_s=2)[0] == 200

    def is_model_ready(self, name: str) -> bool:
        """Whether a model answers requests."""
        return self._call("GET", f"/v2/models/{_quoted(name)}/ready", timeout_s=2)[0] == 200

    def load(self, name: str) -> str | None:
        """Loads a model, however long it takes; the reason in one line where that fails."""
        path = f"/v2/repository/models/{_quoted(name)}/load"
        status, body = self._call("POST", path, timeout_s=None)
        return None if status == 200 else one_line(_error(body) or f"HTTP status {status}")

    def _call(self, method: str, path: str, timeout_s: float | None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:  # the server went away in the middle
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _error(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")


def one_line(error: str) -> str:
    """The reason in a load error, without Triton's prefixes and the traceback's places."""
    text = _TRACEBACK.sub("", _PREFIXES.sub("", error))
    if "failed to poll from model repository" in text:
        text = "its folder or config.pbtxt can't be read (see the log above)"
    missing = _NO_BACKEND.search(text)
    if missing:
        text = f"this tritonserver has no backend '{missing[1]}'; NVIDIA's container has"
    if "is not healthy" in text:
        text = "its Python process died while loading (out of memory?)"
    return " ".join(text.split()).rstrip(" ;") or "no reason given"
