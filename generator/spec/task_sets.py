"""Tasks by what clients ask of them, for all that treats them alike."""

from __future__ import annotations

MEDIA_TASKS = ("image-text-to-text", "audio-text-to-text")  # whose chats have images or sounds
CHAT_TASKS = ("text-generation", *MEDIA_TASKS)  # /v1/chat/completions
COMPLETION_TASKS = (*CHAT_TASKS, "text2text-generation")  # /v1/completions
EMBEDDING_TASKS = ("feature-extraction",)  # /v1/embeddings, /rerank, /score
CLASSIFIER_TASKS = ("text-classification",)  # /classify, /rerank, /score
SPEECH_TASKS = ("automatic-speech-recognition",)  # /v1/audio
OPENAI_TASKS = (*COMPLETION_TASKS, *EMBEDDING_TASKS, *CLASSIFIER_TASKS, *SPEECH_TASKS)
