"""Open WebUI's server with its defaults, asked as its page asks it. What the model ``agent`` writes
is in the message (tests/clients/agent).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from tried import joined, tried

LONG = ("It rains. " * 100).strip()  # longer than an answer is by default
CALL = {"name": "weather", "arguments": {"city": "Rome"}}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
OUTPUT = Path(os.environ["OUTPUT"])


def started(port: int) -> subprocess.Popen[bytes]:
    program = Path(sys.executable).with_name("open-webui")
    asks = {"OPENAI_API_BASE_URL": os.environ["OPENAI_BASE_URL"], "DATA_DIR": str(OUTPUT)}
    with (OUTPUT / "log").open("wb") as log:
        return subprocess.Popen(
            [program, "serve", "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, **asks},
            cwd=OUTPUT,
            stdout=log,
            stderr=log,
        )


def is_healthy() -> bool:
    try:
        return client.get("/health").is_success
    except httpx.TransportError:
        return False


def chat(*script: Any, **options: Any) -> dict[str, Any]:
    asked = {"role": "user", "content": f"Do it. <script>{json.dumps(script)}</script>"}
    return {"model": "agent", "messages": [asked], **options}


def post(path: str, body: dict[str, Any]) -> Any:
    return client.post(path, json=body).raise_for_status().json()


def pieces(body: dict[str, Any]) -> Iterator[str]:
    with client.stream("POST", "/api/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: ")).get("choices", ()):
                    yield choice["delta"].get("content") or ""


with socket.create_server(("127.0.0.1", 0)) as listening:
    port = listening.getsockname()[1]
client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300)
server = started(port)
try:
    with tried("open-webui serve, and its models"):
        while not is_healthy():
            assert server.poll() is None, (OUTPUT / "log").read_text()[-2000:]
            time.sleep(1)
        who = {"name": "a", "email": "a@example.com", "password": "A-long-one-1"}
        token = post("/api/v1/auths/signup", who)["token"]
        client.headers["Authorization"] = f"Bearer {token}"
        found = client.get("/api/models").raise_for_status().json()["data"]
        assert "agent" in [one["id"] for one in found], found
    with tried("a chat"):
        done = post("/api/chat/completions", chat(LONG))
        assert done["choices"][0]["message"]["content"] == LONG, done
    with tried("a chat, streamed"):
        assert joined(pieces(chat(LONG, stream=True))) == LONG
    with tried("a chat with a tool"):
        done = post("/api/chat/completions", chat(CALL, tools=[TOOL]))
        [call] = done["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "weather", done
    with tried("embeddings"):
        done = post("/api/embeddings", {"model": "embedding", "input": ["A dog.", "A cat."]})
        assert [len(one["embedding"]) for one in done["data"]] == [64, 64], done
finally:
    server.terminate()
    server.wait(60)
