"""Prompts with an image or a sound for tiny models: tensors as a type's processor would make them,
found by trying the forms that there are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from hf_triton.runtime.errors import reason
from hf_triton.text_generation.media.processor import MediaProcessor
from hf_triton.text_generation.sequence.source import Source
from tests.support.architectures.sounds import sound_forms

_IDS = (3, 180)  # of text: no special tokens
_MOST_FEATURES = 80
_PLACEHOLDERS = (
    *("image_token_id", "image_token_index", "vision_token_id", "im_patch_id"),
    *("audio_token_id", "audio_token_index"),
)
_BY_TOKEN = ("mm_token_type_ids", "token_type_ids", "moe_mm_token_type_ids")

# A model and a source of random numbers -> the arguments of an image, in two sizes.
Form = Callable[[Any, torch.Generator, int], dict[str, Any]]


@dataclass(frozen=True)
class Images:
    """Makes a model's prompts with an image: the form of its tensors, and the number of
    placeholders for an image of each size.
    """

    model: Any
    form: Form
    counts: tuple[int, int]
    media: MediaProcessor

    def trial_prompts(self) -> list[tuple[list[int], Source]]:
        """Prompts for an engine's trial."""
        return [self.prompt(5, 4, 101), self.prompt(3, 6, 102), self.pair(103, 105)]

    def pair(self, seed: int, other: int) -> tuple[list[int], Source]:
        """A prompt with two images, which are those of ``prompt`` with these seeds."""
        (first, one), (second, more) = self.prompt(4, 3, seed), self.prompt(2, 2, other)
        inputs = {name: self._pair(name, one, more) for name in one.inputs}
        return first + second, self.media.source(first + second, inputs, 2)

    def _pair(self, name: str, one: Source, other: Source) -> Any:
        values = one.inputs[name], other.inputs[name]
        in_rows = self.form in (_framed, _fine) or name in _BY_TOKEN
        return (
            torch.cat(values, dim=int(in_rows))
            if isinstance(values[0], torch.Tensor)
            else values[0]
        )

    def prompt(self, before: int, after: int, seed: int) -> tuple[list[int], Source]:
        """So many tokens of text before and after an image."""
        return self._prompt(self.counts[seed % 2], before, after, seed)

    def _prompt(self, count: int, before: int, after: int, seed: int) -> tuple[list[int], Source]:
        token_ids, inputs = _prompt(self.model, self.form, count, before, after, seed)
        return token_ids, self.media.source(token_ids, inputs, 1)


def images_of(model: Any) -> Images:
    """
    Raises:
        ValueError: no form is one that the model takes, with what it said of each.
    """
    if model.config.is_encoder_decoder:
        raise ValueError("images of encoder-decoders are not measured")
    media = MediaProcessor(SimpleNamespace(image_processor=None), model.config, ())
    refused = []
    for form in _forms(model):
        try:
            counts = _count(model, form, 0), _count(model, form, 1)
        except Exception as error:  # noqa: BLE001 - whatever an architecture raises
            refused.append(f"{form.__name__.strip('_')}: {reason(error, 100)}")
            continue
        return Images(model, form, counts, media)
    raise ValueError("; ".join(refused))


def placeholder(model: Any) -> int:
    """The token at whose places features go."""
    for config in (model.config, model.config.get_text_config()):
        for name in _PLACEHOLDERS:
            if isinstance(getattr(config, name, None), int):
                return int(getattr(config, name))
    raise ValueError("the configuration names no token for images")


def _prompt(
    model: Any, form: Form, count: int, before: int, after: int, seed: int
) -> tuple[list[int], dict[str, Any]]:
    draw = torch.Generator().manual_seed(seed)
    text = torch.randint(*_IDS, (before + after,), generator=draw).tolist()
    config = model.config
    around: list[Any] = [
        getattr(config, f"vision_{side}_token_id", None) for side in ("start", "end")
    ]
    image = [placeholder(model)] * count
    if all(isinstance(token, int) for token in around):
        image = [around[0], *image, around[1]]
    token_ids = text[:before] + image + text[before:]
    kinds = torch.tensor([[int(token == placeholder(model)) for token in token_ids]])
    accepted = inspect.signature(model.forward).parameters
    by_token = {name: kinds for name in _BY_TOKEN if name in accepted}
    if config.model_type == "paligemma":  # whose text after an image is of its kind
        by_token = {"token_type_ids": torch.zeros_like(kinds)}
    return token_ids, {**form(model, draw, seed % 2), **by_token}


def _count(model: Any, form: Form, size: int) -> int:
    """Counts the features that the model makes of an image, which must change its logits."""
    known = _features(model, form, size)
    for count in [known] if known else range(1, _MOST_FEATURES):
        try:
            one, other = (_logits(model, form, count, seed) for seed in (size, size + 2))
        except Exception:
            if count in (known, _MOST_FEATURES - 1):
                raise
            continue
        if torch.equal(one, other):
            raise ValueError("its logits don't depend on the image")
        return count
    raise ValueError("no number of placeholders is right")


@torch.inference_mode()
def _logits(model: Any, form: Form, count: int, seed: int) -> torch.Tensor:
    token_ids, inputs = _prompt(model, form, count, 2, 2, seed % 2)
    inputs.update(form(model, torch.Generator().manual_seed(seed), seed % 2))
    tokens = torch.tensor([token_ids])
    output = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=1,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
        **inputs,
    )
    logits: torch.Tensor = output.logits[0]
    return logits


@torch.inference_mode()
def _features(model: Any, form: Form, size: int) -> int:
    """The features of an image, counted; 0 where the model does not show them."""
    get = getattr(model, "get_image_features", None)
    if get is None or "pixel_values" not in form(model, torch.Generator(), size):
        return 0
    given = form(model, torch.Generator().manual_seed(size), size)
    try:
        output = get(**given)
    except TypeError:
        return 0
    hidden = model.config.get_text_config().hidden_size
    output = getattr(output, "pooler_output", output)
    found = output if isinstance(output, list | tuple) else [output]
    tensors = [one for one in found if isinstance(one, torch.Tensor)]
    return sum(one.numel() for one in tensors) // hidden if tensors else 0


def _forms(model: Any) -> Iterator[Form]:
    """The forms that the model's arguments allow."""
    accepted = inspect.signature(model.forward).parameters
    if "pixel_values" not in accepted:
        yield from sound_forms(model)
    if "image_grid_thw" in accepted:
        yield _patches
        yield _square_patches
        yield _merged_patches
    if "image_grid_hw" in accepted:
        yield _patches_hw
    if "image_position_ids" in accepted:
        yield _placed_patches
        yield _placed_large_patches
    if "spatial_shapes" in accepted:
        yield _padded_patches
    if "target_sizes" in accepted:
        yield _slices
    if "tile_fine_mask" in accepted:
        yield _fine
    if "pixel_attention_mask" in accepted:
        yield _framed
    if "image_sizes" in accepted:
        yield _tiles
        yield _sized
    if "image_token_pooling" in accepted:
        yield _pooled_patches
    yield _plain
    yield _framed
    yield _rows_of_patches


def _vision(model: Any) -> Any:
    config = model.config
    for name in ("vision_config", "vision", "vq_config", "vit_config"):
        found = getattr(config, name, None)
        if found is not None:
            return found
    return config


def _of(config: Any, *names: str, default: int) -> int:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, list | tuple) and value:
            value = value[0]
        if isinstance(value, int):
            return value
    return default


def _side(model: Any) -> int:
    return _of(_vision(model), "image_size", default=32)


def _random(draw: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=draw)


def _plain(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    side = _side(model)
    made = {"pixel_values": _random(draw, 1, 3, side, side)}
    if "high_res_pixel_values" in inspect.signature(model.forward).parameters:
        side = _of(getattr(model.config, "high_res_vision_config", None), "image_size", default=32)
        made["high_res_pixel_values"] = _random(draw, 1, 3, side, side)
    return made


def _framed(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    side = _side(model)
    return {"pixel_values": _random(draw, 1, 1, 3, side, side)}


def _fine(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    """As Granite Docling's: tiles, and which of them are there."""
    return {
        **_framed(model, draw, size),
        "pixel_attention_mask": torch.ones(1, 1, dtype=torch.bool),
    }


def _grid(model: Any, size: int) -> tuple[int, int]:
    merge = _of(_vision(model), "spatial_merge_size", "merge_size", default=2)
    return 2 * merge, (4 if size else 2) * merge


def _patches(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    vision = _vision(model)
    height, width = _grid(model, size)
    patch = _of(vision, "patch_size", default=8)
    frames = _of(vision, "temporal_patch_size", "patch_temporal", default=1)
    dim = _of(vision, "in_channels", "in_chans", "num_channels", default=3) * frames * patch**2
    made = {
        "pixel_values": _random(draw, height * width, dim),
        "image_grid_thw": torch.tensor([[1, height, width]]),
    }
    if "image_merge_sizes" in inspect.signature(model.forward).parameters:
        made["image_merge_sizes"] = torch.tensor([2])
    return made


def _square_patches(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    made = _patches(model, draw, size)
    patch = _of(_vision(model), "patch_size", default=8)
    return {**made, "pixel_values": made["pixel_values"].reshape(-1, 3, patch, patch)}


def _merged_patches(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    """As Inkling's: the pixels of each feature."""
    height, width = _grid(model, size)
    side = _of(_vision(model), "patch_size", default=8)
    side *= _of(_vision(model), "spatial_merge_size", default=2)
    features = height * width // 4
    return {
        "pixel_values": _random(draw, features, side, side, 3),
        "image_grid_thw": torch.tensor([[1, height // 2, width // 2]]),
    }


def _pooled_patches(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    """As Molmo's: patches of crops, which of them each feature is of, and the rows and columns of
    features of the whole image and of its crops.
    """
    vision = _vision(model)
    side = _of(vision, "image_size", default=32) // _of(vision, "patch_size", default=8)
    dim = 3 * _of(vision, "patch_size", default=8) ** 2
    pooled = torch.arange(16 if size else 8).reshape(-1, 2)
    return {
        "pixel_values": _random(draw, 1, side * side, dim),
        "image_token_pooling": pooled,
        "image_grids": torch.tensor([[len(pooled), 1, 0, 0]]),
        "image_num_crops": torch.tensor([1]),
    }


def _rows_of_patches(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    """As Fuyu's: the patches of an image, one feature each."""
    side = _of(model.config, "patch_size", default=8)
    return {"pixel_values": _random(draw, 1, 8 if size else 4, 3 * side**2)}


def _patches_hw(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    made = _patches(model, draw, size)
    return {"pixel_values": made["pixel_values"], "image_grid_hw": made["image_grid_thw"][:, 1:]}


def _placed_patches(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    """As Gemma 4's: patches and the column and row of each."""
    vision = _vision(model)
    pool = _of(vision, "pooling_kernel_size", default=1)
    height, width = 2 * pool, (4 if size else 2) * pool
    dim = 3 * _of(vision, "patch_size", "model_patch_size", default=8) ** 2
    places = [[x, y] for y in range(height) for x in range(width)]
    return {
        "pixel_values": torch.rand(1, height * width, dim, generator=draw),
        "image_position_ids": torch.tensor([places]),
    }


def _placed_large_patches(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    """The same, of as many pixels as are pooled elsewhere."""
    made = _placed_patches(model, draw, size)
    side = _of(_vision(model), "patch_size", default=8)
    side *= _of(_vision(model), "pooling_kernel_size", default=1)
    made["pixel_values"] = torch.rand(*made["pixel_values"].shape[:2], 3 * side**2, generator=draw)
    return made


def _padded_patches(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    """As SigLIP 2's: patches of an image, their mask and its height and width in patches."""
    height, width = (4, 8) if size else (4, 4)
    dim = 3 * _of(_vision(model), "patch_size", default=8) ** 2
    return {
        "pixel_values": _random(draw, 1, height * width, dim),
        "pixel_attention_mask": torch.ones(1, height * width, dtype=torch.int64),
        "spatial_shapes": torch.tensor([[height, width]]),
    }


def _slices(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    """As MiniCPM-V's: rows of patches side by side, and their numbers."""
    height, width = (4, 8) if size else (4, 4)
    patch = _of(_vision(model), "patch_size", default=8)
    return {
        "pixel_values": _random(draw, 1, 3, patch, height * width * patch),
        "target_sizes": torch.tensor([[height, width]]),
    }


def _tiles(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    """As LLaVA-NeXT's: the image and its tiles, and its height and width in pixels."""
    side = _side(model)
    return {
        "pixel_values": _random(draw, 1, 3 if size else 2, 3, side, side),
        "image_sizes": torch.tensor([[side, 2 * side if size else side]]),
    }


def _sized(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    """As Pixtral's: images of several sizes."""
    vision = _vision(model)
    patch = _of(vision, "patch_size", default=8)
    merge = _of(model.config, "spatial_merge_size", default=2)
    height, width = 2 * patch * merge, (2 if size else 1) * patch * merge
    return {
        "pixel_values": _random(draw, 1, 3, height, width),
        "image_sizes": torch.tensor([[height, width]]),
    }
