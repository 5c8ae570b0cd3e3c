"""A model's own processor around prompts with images, and what shared prefixes are found by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    Blip2Processor,
    BlipImageProcessorPil,
    CLIPImageProcessorPil,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
)

from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.weights.weight_loading import leave_out_videos
from hf_triton.text_generation.media.features import ContentNumbers, digests_of
from hf_triton.text_generation.media.processor import MediaProcessor

WORDS = ("<unk>", "what", "is", "this", "?")


def tokenizer(*special: str, **named: str) -> Any:
    words = {word: number for number, word in enumerate((*WORDS, *special, *named.values()))}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unk>",
        pad_token="<unk>",
        additional_special_tokens=list(special),
        **({"extra_special_tokens": named} if named else {}),
    )


@pytest.fixture(scope="module")
def llava() -> MediaProcessor:
    """An image becomes 16 tokens."""
    pixels = CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    processor = LlavaProcessor(
        image_processor=pixels,
        tokenizer=tokenizer("<image>"),
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    return MediaProcessor(processor, None, {"pixel_values", "image_sizes"})


def image(seed: int, width: int = 50, height: int = 40) -> Image.Image:
    draw = np.random.default_rng(seed)
    return Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_placeholders_are_expanded_and_keyed_by_the_image(llava: MediaProcessor) -> None:
    token_ids, source = llava.read("what is <image> this ?", [image(0)])
    assert token_ids == [1, 2, *[5] * 16, 3, 4]
    assert source.num_tokens == 16
    assert list(source.inputs) == ["pixel_values"]
    keys = source.cache_token_ids
    assert keys is not None
    assert [key for key in keys if key >= 0] == [1, 2, 3, 4]
    again = llava.read("what is <image> this ?", [image(0)])[1].cache_token_ids
    other = llava.read("what is <image> this ?", [image(1)])[1].cache_token_ids
    both = llava.read("what is <image> this <image> ?", [image(0), image(1)])[1].cache_token_ids
    assert again == keys != other
    assert other is not None
    assert both == [*keys[:19], *other[2:18], 4]


@pytest.mark.parametrize("text, count", [("what <image> ?", 2), ("what ?", 1), ("<image>", 0)])
def test_other_placeholders_than_images_are_refused(
    llava: MediaProcessor, text: str, count: int
) -> None:
    with pytest.raises(RequestError, match="<image> tokens"):
        llava.read(text, [image(number) for number in range(count)])


def test_a_tokenizer_is_no_processor() -> None:
    with pytest.raises(LoadError, match="reads neither images nor sounds"):
        MediaProcessor(tokenizer(), None, ())


def test_trial_prompts_have_an_image_each_and_the_last_two(llava: MediaProcessor) -> None:
    assert [len(source.digests) for _, source in llava.trial_prompts()] == [1, 1, 2]


@pytest.mark.parametrize("max_tokens", [300, 20])
def test_the_largest_prompt_fits(llava: MediaProcessor, max_tokens: int) -> None:
    prompt = llava.largest_prompt(1e5, max_tokens)
    assert prompt is not None
    assert len(prompt[0]) <= max_tokens
    assert llava.largest_prompt(1e5, 8) is None


def test_images_of_patches_are_told_apart() -> None:
    """A processor with a part for videos, which torchvision alone could load."""
    words = tokenizer("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    pixels = Qwen2VLImageProcessorPil(patch_size=4, min_pixels=64, max_pixels=1024)
    leave_out_videos()
    processor = Qwen2VLProcessor(pixels, words, None)
    names = {"pixel_values", "image_grid_thw", "mm_token_type_ids"}
    media = MediaProcessor(processor, None, names)
    pad = "<|vision_start|><|image_pad|><|vision_end|>"
    one = media.read(f"what {pad} ?", [image(1, 30, 50)])[1]
    both = media.read(f"{pad} is {pad} ?", [image(0), image(1, 30, 50)])[1]
    assert both.digests[1] == one.digests[0] != both.digests[0]


def test_a_number_out_of_a_larger_tensor_has_the_digest_of_its_value() -> None:
    whole = torch.arange(320, dtype=torch.int32).reshape(2, 160)
    part = whole.as_strided((1, 1), (160, 160), 160)
    assert digests_of({"length": part}, 1) == digests_of({"length": part.clone()}, 1)


def test_items_that_cannot_be_told_apart_have_the_digest_of_all() -> None:
    tiles = torch.arange(10.0).reshape(5, 2)
    first, second = digests_of({"pixel_values": tiles}, 2)
    assert first != second
    assert digests_of({"pixel_values": tiles + 1}, 2)[0] != first


def test_runs_that_are_not_one_for_each_image_are_keyed_by_all_images() -> None:
    numbers = ContentNumbers()
    keys = numbers.replace([9, 1, 9, 1], frozenset((9,)), (b"a",))
    assert keys == [-1, 1, -1, 1]
    assert numbers.replace([9, 1, 9], frozenset((9,)), (b"a", b"b")) == [-1, 1, -2]
    assert numbers.replace([4, 5], frozenset((9,)), (b"a", b"b")) == [-3, 5]


def test_what_stands_for_an_image_is_found_by_trial(llava: MediaProcessor) -> None:
    assert llava.tokens == {"image": "<image>"}
    square = {"height": 32, "width": 32}
    soft = tokenizer(
        boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>"
    )
    gemma = Gemma3Processor(Gemma3ImageProcessorPil(size=square), soft, image_seq_length=4)
    assert MediaProcessor(gemma, None, {"pixel_values"}).tokens == {"image": "<start_of_image>"}


def test_a_processor_that_marks_the_places_itself_needs_no_placeholder() -> None:
    pixels = BlipImageProcessorPil(size={"height": 32, "width": 32})
    processor = Blip2Processor(pixels, tokenizer("<image>"), num_query_tokens=4)
    config = SimpleNamespace(image_token_index=len(WORDS))
    media = MediaProcessor(processor, config, {"pixel_values"})
    assert media.tokens == {"image": ""}
    [(token_ids, source), *_] = media.trial_prompts()
    assert token_ids[:4] == [len(WORDS)] * 4
    assert source.num_tokens == 4
