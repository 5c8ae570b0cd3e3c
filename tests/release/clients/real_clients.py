"""Lists the clients to drive: packages and versions, driver, what does not work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DRIVERS = Path(__file__).parent / "drivers"


@dataclass(frozen=True)
class Client:
    """The first of ``requirements`` is the client, of PyPI or, after ``npm:``, of npm; ``gaps`` are
    the names of what its driver tries in vain, each with the reason.
    """

    name: str
    driver: str
    requirements: tuple[str, ...]
    gaps: Mapping[str, str] = field(default_factory=dict)


CLIENTS = (
    Client("anthropic", "drive_anthropic.py", ("anthropic==2.*",)),
    Client("Claude Code", "drive_claude_code.mjs", ("npm:@anthropic-ai/claude-code@2.1",)),
    Client(
        "langchain-openai",
        "drive_langchain.py",
        ("langchain-openai==1.*",),
        {"OpenAIEmbeddings": "it sends token ids of OpenAI's own tokenizer, which it downloads"},
    ),
    # It imports mcp where there are tools, and does not require it.
    Client("LiteLLM", "drive_litellm.py", ("litellm==1.106.*", "mcp")),
    Client("LlamaIndex", "drive_llama_index.py", ("llama-index-llms-nvidia-triton==0.6.*",)),
    Client("openai", "drive_openai.py", ("openai==3.*",)),
    Client("openai (Node)", "drive_openai.mjs", ("npm:openai@7", "npm:zod")),
    Client("tritonclient", "drive_tritonclient.py", ("tritonclient[grpc,http]==2.73.*",)),
)
