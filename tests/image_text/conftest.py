"""A tiny model that sees, saved once, and its answers by transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pipeline.tiny_pipelines import llava

MODELS_YAML = """
defaults: {{task: image-text-to-text, model: {folder}}}
models:
  - name: see
    options: {{max_images: 3, max_image_megapixels: 0.01, max_input_mib: 0.5}}
  - name: rows
    max_batch_size: 4
    streaming: false
"""


class Reference:
    """The same model without any server."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.processor = AutoProcessor.from_pretrained(folder)
        self.model: Any = AutoModelForImageTextToText.from_pretrained(folder).eval()

    def greedy(self, prompt: str, *images: Any, max_tokens: int = 8) -> str:
        """The answer to a prompt that has a placeholder for each image."""
        inputs = self.processor(text=prompt, images=list(images) or None, return_tensors="pt")
        with torch.inference_mode():
            found = self.model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
        num_prompt_tokens = inputs["input_ids"].shape[1]
        ends = (found[0], found[0, :num_prompt_tokens])
        whole, before = (self.processor.decode(ids, skip_special_tokens=True) for ids in ends)
        assert whole.startswith(before)
        return str(whole[len(before) :])

    def chat(self, messages: list[Any], *images: Any, max_tokens: int = 8) -> str:
        """The answer to a chat."""
        prompt = self.processor.apply_chat_template(messages, add_generation_prompt=True)
        return self.greedy(prompt, *images, max_tokens=max_tokens)


@pytest.fixture(scope="session")
def seeing_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("seeing")
    llava(folder)
    return folder


@pytest.fixture(scope="session")
def reference(seeing_model: Path) -> Reference:
    return Reference(seeing_model)
