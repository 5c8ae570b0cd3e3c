"""Which tasks OpenAI's API has a path for."""

from __future__ import annotations

TEXT_TASKS = ("text-generation",)  # /v1/completions and /v1/chat/completions
EMBEDDING_TASKS = ("feature-extraction",)  # /v1/embeddings
