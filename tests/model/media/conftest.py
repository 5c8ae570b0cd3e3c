"""Tiny models that see and hear, saved once, and their answers by transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tiny_encoders import tiny_tokenizer
from tests.support.tiny_pipelines import llava, save

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
        from transformers import AutoModelForMultimodalLM, AutoProcessor

        self.processor = AutoProcessor.from_pretrained(folder)
        self.model: Any = AutoModelForMultimodalLM.from_pretrained(folder).eval()

    def greedy(self, prompt: str, *images: Any, max_tokens: int = 8, **files: Any) -> str:
        """The answer to a prompt that has a placeholder for each image or other file."""
        if images:
            files["images"] = list(images)
        inputs = self.processor(text=prompt, **files, return_tensors="pt")
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


def qwen2_audio(folder: Path) -> None:
    """A language model that hears, with a chat template."""
    import transformers

    tokenizer = tiny_tokenizer("distilbert")
    marks = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    text: Any = transformers.Qwen2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        vocab_size=len(tokenizer),
        max_position_embeddings=256,
        pad_token_id=0,
    )
    sounds = transformers.Qwen2AudioEncoderConfig(
        num_mel_bins=80,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=32,
        d_model=32,
        max_source_positions=1500,
    )
    number = tokenizer.convert_tokens_to_ids(marks[0])
    config = transformers.Qwen2AudioConfig(
        audio_config=sounds, text_config=text, audio_token_index=number
    )
    save(transformers.Qwen2AudioForConditionalGeneration, config, folder)
    template = (
        "{% for m in messages %}{{ m['role'] }} : {% for c in m['content'] %}"
        "{% if c['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
        "{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %} . {% endfor %}"
    )
    features = transformers.WhisperFeatureExtractor(feature_size=80)
    transformers.Qwen2AudioProcessor(features, tokenizer, chat_template=template).save_pretrained(
        folder
    )
