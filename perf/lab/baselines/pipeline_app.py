"""The service that people write: FastAPI around transformers' text-generation pipeline.

Runs in uvicorn, in an environment of its own (``servers.py``); the variable ``MODEL`` names the
folder.
"""

import os

import torch
from fastapi import FastAPI  # type: ignore[import-not-found]
from pydantic import BaseModel
from transformers import pipeline

app = FastAPI()
generator = pipeline("text-generation", model=os.environ["MODEL"], dtype=torch.float32)


class Prompt(BaseModel):
    prompt: str
    max_new_tokens: int


@app.post("/generate")  # type: ignore[untyped-decorator]
def generate(request: Prompt) -> dict[str, str]:
    """Generates greedily. Not async: uvicorn then calls it in its thread pool."""
    [answer] = generator(
        request.prompt,
        max_new_tokens=request.max_new_tokens,
        do_sample=False,
        return_full_text=False,
    )
    return {"generated_text": answer["generated_text"]}
