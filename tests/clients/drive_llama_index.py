"""Asks a model through LlamaIndex's NvidiaTriton; prints the texts as one JSON object.

Arguments: ``host:port`` of gRPC, the model's name, tokens. Runs in LlamaIndex's own environment.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from llama_index.core.base.llms.types import ChatMessage  # type: ignore[import-not-found]
from llama_index.llms.nvidia_triton import NvidiaTriton  # type: ignore[import-not-found]

PROMPT = "How can you be"


def main(server: str, model: str, tokens: int) -> dict[str, Any]:
    llm = NvidiaTriton(server_url=server, model_name=model, tokens=tokens)
    return {
        "complete": llm.complete(PROMPT).text,
        "stream_complete": [chunk.delta for chunk in llm.stream_complete(PROMPT)],
        "chat": llm.chat([ChatMessage(role="user", content=PROMPT)]).message.content,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
