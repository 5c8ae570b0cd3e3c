"""genai-perf with Triton's vLLM backend over gRPC, and with OpenAI's API."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tried import MODEL_FOLDER, SERVER, program, tried

folder = Path(os.environ["OUTPUT"])


def profile(name: str, *arguments: str) -> None:
    artifacts = folder / name
    program(
        *("genai-perf", "profile", "--tokenizer", MODEL_FOLDER, *arguments),
        *("--num-prompts", "5", "--synthetic-input-tokens-mean", "10"),
        *("--output-tokens-mean", "12", "--concurrency", "2", "--artifact-dir", str(artifacts)),
        *("--request-count", "6"),
    )
    [export] = artifacts.glob("**/profile_export_genai_perf.json")
    statistics = json.loads(export.read_text())
    assert statistics["request_throughput"]["avg"] > 0, statistics
    assert "--streaming" not in arguments or "inter_token_latency" in statistics, statistics


TRITON = ("--endpoint-type", "kserve", "--backend", "vllm", "-u", os.environ["TRITON_GRPC"])
OPENAI = ("-u", SERVER)

with tried("triton, vllm backend"):
    profile("whole", "-m", "demo_stream", *TRITON)
with tried("triton, vllm backend, streamed"):
    profile("streamed", "-m", "demo_stream", *TRITON, "--streaming")
with tried("openai, chat, streamed"):
    profile("chats", "-m", "demo", *OPENAI, "--endpoint-type", "chat", "--streaming")
with tried("openai, embeddings"):
    profile("vectors", "-m", "embedding", *OPENAI, "--endpoint-type", "embeddings")
