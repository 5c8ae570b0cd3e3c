"""LlamaIndex's NvidiaTriton, over gRPC: its tensors have rank 2, for a model with batches."""

from __future__ import annotations

import os

from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.nvidia_triton import NvidiaTriton
from tried import PROMPT, joined, tried

# It drops the response number max_tokens: ask for more than the answer has.
llm = NvidiaTriton(server_url=os.environ["TRITON_GRPC"], model_name="batched_stream", tokens=64)
EXPECTED = os.environ["EXPECTED_WHOLE"]

with tried("complete"):
    assert llm.complete(PROMPT).text == EXPECTED
with tried("stream_complete"):
    assert joined(chunk.delta for chunk in llm.stream_complete(PROMPT)) == EXPECTED
with tried("chat"):
    assert llm.chat([ChatMessage(role="user", content=PROMPT)]).message.content
