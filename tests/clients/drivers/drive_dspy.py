"""dspy's language model and embedder; its adapters' forms are too much for so small a model."""

from __future__ import annotations

import dspy
from pydantic import BaseModel
from tried import SAID, tried

lm = dspy.LM("openai/chat", max_tokens=200, cache=False)


class Answer(BaseModel, extra="forbid"):
    happy: bool


with tried("LM"):
    assert lm(SAID)[0]
with tried("LM with response_format"):
    assert Answer.model_validate_json(lm(SAID, response_format=Answer)[0])
with tried("Embedder"):
    assert dspy.Embedder("openai/embedding", caching=False)(["A dog.", "A cat."]).shape == (2, 64)
