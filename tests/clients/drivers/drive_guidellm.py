"""guidellm: chat and completions, streamed as it does by default."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tried import MODEL_FOLDER, SERVER, program, tried

folder = Path(os.environ["OUTPUT"])


def run(name: str, backend: str) -> None:
    """Every request of a benchmark of five was answered."""
    path = folder / f"{name}.json"
    said = program(
        *("guidellm", "run", "--backend", f"kind=openai_http,target={SERVER}{backend}"),
        *("--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=5"),
        *("--tokenizer", f"kind=huggingface_auto,model={MODEL_FOLDER}"),
        *("--data", "kind=synthetic_text,prompt_tokens=20,output_tokens=12"),
        *("--output", f"kind=json,path={path}", "--disable-progress"),
    )
    [benchmark] = json.loads(path.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["successful"] == 5, (totals, said)
    assert not totals["errored"], (totals, said)


with tried("chat"):
    run("chat", "")
with tried("completions"):
    run("completions", ",request_format=/v1/completions")
