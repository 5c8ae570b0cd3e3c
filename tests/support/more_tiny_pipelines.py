"""Tiny models of the kinds of pipelines that are rarer: each once, to see that it is served."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.tiny_encoders import tiny_encoder, tiny_tokenizer
from tests.support.tiny_pipelines import save, vit

_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
_THREE_LABELS: dict[str, Any] = {"id2label": {0: "cat", 1: "mat", 2: "sky"}}
_SQUARE = {"height": 32, "width": 32}


def yolos(folder: Path) -> None:
    """Object detection without a convolutional backbone."""
    from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessor

    config = YolosConfig(
        **_SHAPE, image_size=[32, 32], patch_size=8, num_detection_tokens=5, **_THREE_LABELS
    )
    save(YolosForObjectDetection, config, folder)
    size = {"shortest_edge": 32, "longest_edge": 40}
    YolosImageProcessor(size=size).save_pretrained(folder)


def segformer(folder: Path) -> None:
    from transformers import (
        SegformerConfig,
        SegformerForSemanticSegmentation,
        SegformerImageProcessor,
    )

    config = SegformerConfig(
        num_encoder_blocks=4,
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 8, 8, 8],
        num_attention_heads=[1, 1, 1, 1],
        decoder_hidden_size=8,
        **_THREE_LABELS,
    )
    save(SegformerForSemanticSegmentation, config, folder)
    SegformerImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)


def owlvit(folder: Path) -> None:
    from transformers import OwlViTConfig, OwlViTForObjectDetection, OwlViTImageProcessor

    tokenizer = tiny_tokenizer("distilbert")
    text = {**_SHAPE, "vocab_size": len(tokenizer), "max_position_embeddings": 16}
    vision = {**_SHAPE, "image_size": 32, "patch_size": 8}
    config = OwlViTConfig(text_config=text, vision_config=vision, projection_dim=32)
    save(OwlViTForObjectDetection, config, folder)
    tokenizer.save_pretrained(folder)
    OwlViTImageProcessor(size=_SQUARE, crop_size=_SQUARE).save_pretrained(folder)


def layoutlm(folder: Path) -> None:
    from transformers import LayoutLMConfig, LayoutLMForQuestionAnswering

    tokenizer = tiny_tokenizer("bert")
    tokenizer.save_pretrained(folder)
    config = LayoutLMConfig(**_SHAPE, vocab_size=len(tokenizer), max_position_embeddings=512)
    save(LayoutLMForQuestionAnswering, config, folder)


def vits(folder: Path) -> None:
    """Speech from text."""
    from transformers import VitsConfig, VitsModel, VitsTokenizer

    vocabulary = {letter: index for index, letter in enumerate("_ abcdefghijklmnopqrstuvwxyz")}
    path = folder / "vocab.json"
    path.write_text(json.dumps(vocabulary))
    VitsTokenizer(str(path), pad_token="_", phonemize=False).save_pretrained(folder)
    config = VitsConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=16,
        flow_size=16,
        spectrogram_bins=9,
        posterior_encoder_num_wavenet_layers=1,
        prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=1,
        duration_predictor_num_flows=1,
        duration_predictor_filter_channels=16,
        depth_separable_num_layers=1,
        upsample_initial_channel=16,
        upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1]],
        noise_scale=0.0,
        noise_scale_duration=0.0,
        use_stochastic_duration_prediction=False,
    )
    torch.manual_seed(7)
    VitsModel(config).save_pretrained(folder)


def clap(folder: Path) -> None:
    """Sounds and texts in one space."""
    from transformers import ClapConfig, ClapFeatureExtractor, ClapModel

    tokenizer = tiny_tokenizer("roberta")
    text = {**_SHAPE, "vocab_size": len(tokenizer), "max_position_embeddings": 40}
    sound = {
        "window_size": 2,
        "num_mel_bins": 16,
        "spec_size": 64,
        "patch_size": 4,
        "patch_stride": [4, 4],
        "hidden_size": 16,
        "patch_embeds_hidden_size": 8,
        "depths": [1, 1],
        "num_attention_heads": [1, 1],
        "num_hidden_layers": 2,
    }
    config = ClapConfig(text_config=text, audio_config=sound, projection_dim=8)
    save(ClapModel, config, folder)
    tokenizer.save_pretrained(folder)
    ClapFeatureExtractor(
        feature_size=16,
        sampling_rate=16_000,
        hop_length=250,
        max_length_s=1,
        fft_window_size=1024,
        frequency_max=8000,
        truncation="rand_trunc",
    ).save_pretrained(folder)


def bert_tagger(folder: Path) -> None:
    names = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}}
    tiny_encoder("bert", "AutoModelForTokenClassification", folder, **names)


MORE_MAKERS: dict[str, Callable[[Path], None]] = {
    "object-detection": yolos,
    "image-segmentation": segformer,
    "zero-shot-object-detection": owlvit,
    "document-question-answering": layoutlm,
    "text-to-audio": vits,
    "zero-shot-audio-classification": clap,
    "token-classification": bert_tagger,
    "image-feature-extraction": vit,
}
