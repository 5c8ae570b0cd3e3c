"""Haystack's components of OpenAI's API."""

from __future__ import annotations

from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage, Document
from tried import SAID, joined, tried

MESSAGES = [ChatMessage.from_user(SAID)]
SHORT = {"generation_kwargs": {"max_completion_tokens": 60}}

with tried("OpenAIChatGenerator"):
    assert OpenAIChatGenerator(model="chat", **SHORT).run(MESSAGES)["replies"][0].text
with tried("OpenAIChatGenerator, streamed"):
    pieces: list[str] = []
    generator = OpenAIChatGenerator(
        model="chat", streaming_callback=lambda chunk: pieces.append(chunk.content), **SHORT
    )
    assert generator.run(MESSAGES)["replies"][0].text == joined(iter(pieces))
with tried("OpenAIResponsesChatGenerator"):
    assert OpenAIResponsesChatGenerator(model="chat").run(MESSAGES)["replies"][0].text
with tried("OpenAITextEmbedder"):
    assert len(OpenAITextEmbedder(model="embedding").run("A dog.")["embedding"]) == 64
with tried("OpenAIDocumentEmbedder"):
    documents = [Document(content="A dog."), Document(content="A cat.")]
    found = OpenAIDocumentEmbedder(model="embedding", progress_bar=False).run(documents)
    assert [len(document.embedding) for document in found["documents"]] == [64, 64]
