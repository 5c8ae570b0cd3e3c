"""The service that people write: FastAPI around transformers' feature-extraction pipeline.

Runs in uvicorn, in an environment of its own (``perf.baselines.packages``); the variable ``MODEL``
names the folder.
"""

import os
from typing import Any

import torch
from fastapi import FastAPI  # type: ignore[import-not-found]
from pydantic import BaseModel
from transformers import pipeline

app = FastAPI()
extractor = pipeline("feature-extraction", model=os.environ["MODEL"], dtype=torch.float32)


class Text(BaseModel):
    """A request."""

    text: str


@app.post("/embed")  # type: ignore[untyped-decorator]
def embed(request: Text) -> dict[str, list[float]]:
    """Mean pooling, length 1; a plain function, so uvicorn calls it in its thread pool."""
    hidden: Any = extractor(request.text, return_tensors=True)  # (1, tokens, size)
    embedding = torch.nn.functional.normalize(hidden.mean(dim=1), dim=-1)
    return {"embedding": embedding[0].tolist()}
