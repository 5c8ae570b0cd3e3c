"""Anthropic's Agent SDK, which runs the Claude Code that it brings, with a tool of its own."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, create_sdk_mcp_server, query, tool
from tried import tried

NAME = "mcp__sky__weather"
SETTINGS = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": "agent",
}


@tool("weather", "Tells the weather.", {"city": str})
async def weather(given: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": f"rain in {given['city']}"}]}


OPTIONS = ClaudeAgentOptions(
    model="agent",
    mcp_servers={"sky": create_sdk_mcp_server("sky", tools=[weather])},
    allowed_tools=[NAME],
    cwd=os.environ["OUTPUT"],
    env=SETTINGS,
)


def task(*script: Any) -> str:
    return f"Do it. <script>{json.dumps(script)}</script>"


async def main() -> None:
    find = {"name": "ToolSearch", "arguments": {"query": f"select:{NAME}"}}
    calls = {"name": NAME, "arguments": {"city": "Rome"}}
    with tried("query() with a tool"):
        told = [
            str(one) async for one in query(prompt=task(find, calls, "It rains."), options=OPTIONS)
        ]
        assert any("rain in Rome" in one for one in told), told
        assert "It rains." in told[-1], told
    with tried("ClaudeSDKClient, two turns"):
        async with ClaudeSDKClient(OPTIONS) as client:
            for answer in ("Well", "Well again"):
                await client.query(task(answer))
                told = [str(one) async for one in client.receive_response()]
                assert answer in told[-1], told


asyncio.run(main())
