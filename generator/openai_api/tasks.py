"""Which tasks OpenAI's API has a path for."""

from __future__ import annotations

CHAT_TASKS = ("text-generation",)  # /v1/chat/completions
COMPLETION_TASKS = ("text-generation", "text2text-generation")  # /v1/completions
EMBEDDING_TASKS = ("feature-extraction",)  # /v1/embeddings
ALL_TASKS = (*COMPLETION_TASKS, *EMBEDDING_TASKS)
