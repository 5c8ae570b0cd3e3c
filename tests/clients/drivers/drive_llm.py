"""llm, the command, with a model of an OpenAI-compatible server in its settings."""

from __future__ import annotations

import os
from pathlib import Path

from tried import SAID, program, tried

folder = Path(os.environ["OUTPUT"])
base = os.environ["OPENAI_BASE_URL"]
(folder / "extra-openai-models.yaml").write_text(
    f"- {{model_id: chat, model_name: chat, api_base: '{base}', supports_schema: true}}\n"
    f"- {{model_id: whole, model_name: chat, api_base: '{base}', can_stream: false}}\n"
)
os.environ["LLM_USER_PATH"] = str(folder)

with tried("llm"):
    assert program("llm", "-m", "chat", "-o", "max_tokens", "30", SAID).strip()
with tried("llm without a stream"):
    assert program("llm", "-m", "whole", "-o", "max_tokens", "30", SAID).strip()
with tried("llm --schema"):
    assert '"happy"' in program("llm", "-m", "chat", "--schema", "happy bool", SAID)
with tried("llm -c"):
    assert program("llm", "-c", "-o", "max_tokens", "30", "Thank you.").strip()
