"""Other names that people have for tasks: the Hub's tags, and pipelines of transformers."""

from __future__ import annotations

import re
from collections.abc import Collection

_OTHER_NAMES = {
    "sentence-similarity": "feature-extraction",
    "embeddings": "feature-extraction",
    "sentiment-analysis": "text-classification",
    "text-ranking": "text-classification",
    "reranking": "text-classification",
    "ner": "token-classification",
    "conversational": "text-generation",
    **dict.fromkeys(("image-to-text", "visual-question-answering", "vqa"), "image-text-to-text"),
    "asr": "automatic-speech-recognition",
    "speech-to-text": "automatic-speech-recognition",
}
# What pipelines of transformers were called that no longer are: one model, several names.
_TEXT_TO_TEXT = re.compile(r"(summarization|translation)(_\w+)?")
_PIPELINES = re.compile(
    r"(zero-shot-)?(image|audio|object|video|mask|depth|keypoint)-[a-z-]+"
    r"|text-to-(audio|speech)|any-to-any"
    r"|(document|table)-question-answering"
)


def task_hint(tag: str, tasks: Collection[str]) -> str:
    """``; did you mean ...`` for another name of one of ``tasks``; empty where it is none."""
    other = _OTHER_NAMES.get(tag)
    if _TEXT_TO_TEXT.fullmatch(tag):
        other = "text2text-generation"
    if other in tasks:
        return f"; did you mean '{other}'?"
    if "pipeline" in tasks and _PIPELINES.fullmatch(tag):
        return f"; did you mean 'pipeline', with options: {{pipeline: {tag}}}?"
    return ""
