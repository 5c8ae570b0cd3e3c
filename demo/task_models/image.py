"""image-classification: a ViT that names the colour of a picture."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from transformers import AutoModelForImageClassification, ViTConfig, ViTForImageClassification

from demo.training import Batch, save_float16, train

STEPS = 300
SIZE = 32  # pixels a side
COLOURS = {
    "red": (215, 25, 25),
    "green": (30, 150, 40),
    "blue": (25, 50, 210),
    "yellow": (240, 220, 30),
    "orange": (250, 135, 15),
    "purple": (130, 30, 160),
    "pink": (250, 150, 190),
    "brown": (110, 65, 25),
    "white": (245, 245, 245),
    "grey": (128, 128, 128),
    "black": (12, 12, 12),
}
LABELS = tuple(COLOURS)
PREPROCESSING = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": SIZE, "width": SIZE},
    "resample": 2,  # bilinear
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "do_convert_rgb": True,
}


def pictures(num_pictures: int, noise: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures (batch, 3, SIZE, SIZE) in 0..1 and the labels (batch,) of their colours.

    Each has a shade of its colour, brighter to one side, with grain and a spot of another colour.
    """

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(num_pictures, *shape, generator=noise)

    table = torch.tensor(list(COLOURS.values())) / 255
    labels = torch.randint(len(LABELS), (num_pictures,), generator=noise)
    shades = table[labels] * (0.9 + 0.2 * uniform(1)) + 0.08 * (uniform(3) - 0.5)
    images = shades[:, :, None, None] + 0.06 * (uniform(3, SIZE, SIZE) - 0.5)
    axis = torch.linspace(-1, 1, SIZE)
    angle = 2 * math.pi * uniform(1, 1)
    slope = angle.cos() * axis[None, :] + angle.sin() * axis[:, None]  # (batch, SIZE, SIZE)
    images = images * (1 + 0.1 * slope[:, None])
    spots = table[torch.randint(len(LABELS), (num_pictures,), generator=noise)]
    x, y = (2 * uniform(2, 1, 1) - 1).unbind(1)  # the middle of the spot, (batch, 1, 1) each
    distance = (axis[None, :] - x) ** 2 + (axis[:, None] - y) ** 2
    inside = (distance < (0.5 * uniform(1, 1)) ** 2)[:, None]
    return torch.where(inside, spots[:, :, None, None], images).clamp(0, 1), labels


def make(out: Path, steps: int, seed: int) -> None:
    """Train and save to ``out``/image."""
    model = ViTForImageClassification(_config())
    noise = torch.Generator().manual_seed(seed)

    def batch() -> Batch:
        images, labels = pictures(64, noise)
        return {"pixel_values": 2 * images - 1, "labels": labels}

    train(model, batch, steps=steps, learning_rate=3e-3, title="image")
    save_float16(model, out / "image")
    path = out / "image" / "preprocessor_config.json"
    path.write_text(json.dumps(PREPROCESSING, indent=2) + "\n", encoding="utf-8")


def _config() -> ViTConfig:
    return ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=SIZE,
        patch_size=8,
        initializer_range=0.05,
        id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
        dtype="float32",
    )


def show(out: Path) -> None:
    """Print what the saved model calls a plain picture of each colour."""
    model = AutoModelForImageClassification.from_pretrained(out / "image")
    table = torch.tensor(list(COLOURS.values())) / 255
    images = table[:, :, None, None].expand(-1, 3, SIZE, SIZE)
    with torch.inference_mode():
        scores = model(pixel_values=2 * images - 1).logits.softmax(-1)
    for name, row in zip(LABELS, scores, strict=True):
        print(name, LABELS[int(row.argmax())], f"{row.max():.2f}")
