"""aiperf's endpoints, and its reading of the server's metrics."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tried import MODEL_FOLDER, SERVER, program, tried

folder = Path(os.environ["OUTPUT"])
SHORT = ("--isl", "20", "--osl", "12")
PASSAGES = ("--rankings-passages-mean", "3")
PASSAGE_TOKENS = ("--rankings-passages-prompt-token-mean", "12")
QUERY_TOKENS = ("--rankings-query-prompt-token-mean", "5")


def profile(endpoint: str, *arguments: str, model: str = "demo") -> Path:
    """Its folder; every request was answered."""
    artifacts = folder / "-".join((endpoint, *arguments)).replace("--", "")
    said = program(
        *("aiperf", "profile", "-m", model, "--url", SERVER, "--endpoint-type", endpoint),
        *("--tokenizer", MODEL_FOLDER, "--request-count", "4", "--concurrency", "2"),
        *("--artifact-dir", str(artifacts), *arguments),
        HF_HUB_OFFLINE="",  # where it is set, aiperf takes no folder as a tokenizer
    )
    found = json.loads((artifacts / "profile_export_aiperf.json").read_text())
    assert found["request_count"]["avg"] == 4, said
    assert not found.get("error_summary"), found["error_summary"]
    return artifacts


with tried("chat with its default lengths"):
    profile("chat")
with tried("chat --streaming --per-chunk-usage, and the server's metrics"):
    usage = ("--per-chunk-usage", "--use-server-token-count")
    artifacts = profile("chat", *SHORT, "--streaming", *usage)
    metrics = json.loads((artifacts / "server_metrics_export.json").read_text())["metrics"]
    assert any(name.startswith("hf_") for name in metrics), list(metrics)
for endpoint in ("completions", "responses", "messages"):
    with tried(f"{endpoint} --streaming"):
        profile(endpoint, *SHORT, "--streaming")
with tried("embeddings"):
    profile("embeddings", "--isl", "20", model="embedding")
with tried("cohere-rankings"):
    profile("cohere-rankings", *PASSAGES, *PASSAGE_TOKENS, *QUERY_TOKENS, model="embedding")
