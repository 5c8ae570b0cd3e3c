"""A tiny Whisper, saved once, and its transcripts by transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hf_triton.automatic_speech_recognition.transcript import Wanted
from tests.support.tiny_whisper import tiny_whisper


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="session")
def loaded(folder: Path) -> tuple[Any, Any]:
    return load(folder)


def load(folder: Path) -> tuple[Any, Any]:
    """The model and its processor."""
    from transformers import AutoProcessor, WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    return model, AutoProcessor.from_pretrained(folder)


def reference(loaded: Any, sound: Any, wanted: Wanted) -> list[Any]:
    """transformers' own segments."""
    model, processor = loaded
    is_long = len(sound) > processor.feature_extractor.n_samples
    features = processor.feature_extractor(
        sound,
        sampling_rate=16_000,
        truncation=False,
        padding="longest" if is_long else "max_length",
        return_tensors="pt",
    ).input_features
    prompt = torch.tensor(processor.get_prompt_ids(wanted.prompt)) if wanted.prompt else None
    return list(
        model.generate(
            features,
            return_timestamps=wanted.timestamps or is_long,
            language=wanted.language,
            task=wanted.task,
            prompt_ids=prompt,
            return_segments=True,
        )["segments"][0]
    )
