"""Requests with images beside text: greedy tokens stay those of ``model.generate``, request by
request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial, wraps
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText

from hf_triton.runtime.errors import NO_NUMBERS, EngineError, RequestError
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.engines.generate.generate_engine import GenerateEngine
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.engines.in_flight.runner_selection import UnsupportedModelError
from hf_triton.text_generation.forward.transformers import transformers_runner
from hf_triton.text_generation.forward.transformers.transformers_runner import parts_of
from hf_triton.text_generation.generation_loading import start_from_setup
from hf_triton.text_generation.media.decoder_entry import DecoderEntry, Part
from hf_triton.text_generation.memory import state_pages
from hf_triton.text_generation.sequence.sequence import Sequence
from hf_triton.text_generation.sequence.source import Source
from tests.support.architectures.configurations import tiny_config
from tests.support.architectures.media import Images, images_of
from tests.support.driving import Answers, generate_all, running, setup
from tests.support.tiny_models import Asked, own_tokens, with_large_weights
from tests.support.triton import eventually

MAX_TOKENS = 8
# Plain positions; positions of three axes; features of several layers; tokens of an image that see
# each other, beside windows.
TYPES = ("llava", "qwen2_5_vl", "qwen3_vl", "gemma3")


@cache
def images(name: str) -> Images:
    """Prompts for a tiny model of that type, as it was loaded."""
    torch.manual_seed(0)
    model = with_large_weights(AutoModelForImageTextToText.from_config(tiny_config(name))).eval()
    return images_of(model)


@pytest.fixture(params=TYPES)
def made(request: pytest.FixtureRequest) -> Iterator[Images]:
    own = images(request.param)
    yield own
    own.model.set_attn_implementation("sdpa")
    for module in own.model.modules():
        module._forward_pre_hooks.clear()


def asked_of(made: Images) -> list[Asked]:
    """Prompts with images and without, the first of them twice, and its text with another image."""
    first, source = made.prompt(24, 12, 1)
    other, other_source = made.prompt(24, 12, 3)
    small, small_source = made.prompt(5, 9, 2)
    return [
        Asked(first, MAX_TOKENS, source),
        Asked([7, 11, 13], MAX_TOKENS),
        Asked(small, MAX_TOKENS, small_source),
        Asked(list(range(20, 45)), MAX_TOKENS),
        Asked(other, MAX_TOKENS, other_source),
        Asked(first, MAX_TOKENS, source),
    ]


def expected(made: Images, asked: list[Asked]) -> list[tuple[int, ...]]:
    """``generate``'s own tokens, one by one."""
    found = []
    for one in asked:
        read = (one.source or Source({}, 0)).on(torch.device("cpu"), made.model.dtype)
        found.append(own_tokens(made.model, one.prompt, one.max_tokens, eos_token_id=None, **read))
    return found


def engine_of(made: Images, **options: Any) -> InFlightEngine:
    """Computes prompts in chunks of at most 16 tokens."""
    given = {"max_num_seqs": 3, "max_num_batched_tokens": 16, **options}
    return InFlightEngine(replace(setup(made.model, **given), trial_prompts=made.trial_prompts))


@pytest.fixture
def short_prefixes(monkeypatch: pytest.MonkeyPatch, small_pages: None) -> None:
    monkeypatch.setattr(state_pages, "MIN_TOKENS", 4)


@pytest.mark.usefixtures("short_prefixes")
@pytest.mark.parametrize(
    "made, storage_kind",
    [
        *(("llava", "compiled"), ("qwen3_vl", "compiled")),
        *(("qwen2_5_vl", "few pages"), ("gemma3", "few pages")),
    ],
    indirect=True,
)
def test_images_and_text_share_batches(made: Images, storage_kind: str) -> None:
    asked = asked_of(made)
    own = expected(made, asked)
    engine = engine_of(made, max_model_len=80)
    with running(engine):
        assert generate_all(engine, asked, at_first=4) == own
    assert "packed" in engine.runner.name


# A decoder that merges images by itself; features by layer in a dict; prompts whose tokens all see
# each other.
@pytest.mark.parametrize("made", ["chameleon", "granite4_vision", "paligemma"], indirect=True)
def test_images_are_held_however_a_model_merges_them(made: Images) -> None:
    asked = asked_of(made)
    own = expected(made, asked)
    with running(engine_of(made)) as engine:
        assert generate_all(engine, asked, at_first=4) == own


@pytest.mark.usefixtures("short_prefixes")
@pytest.mark.parametrize("made", ["llava"], indirect=True)
def test_an_equal_image_is_shared_and_another_is_not(made: Images) -> None:
    first, source = made.prompt(24, 12, 1)
    other, other_source = made.prompt(24, 12, 3)
    other = first[:24] + other[24:]
    other_source = made.media.source(other, other_source.inputs, 1)
    num_image_tokens = len(first) - 36
    engine, answers, reused = engine_of(made), Answers(), []
    with running(engine):
        for number, (tokens, one) in enumerate(
            [(first, source), (first, source), (other, other_source)]
        ):
            [sequence] = answers.of([Asked(tokens, 2, one)], number)
            engine.submit([sequence])
            answers.completion(number)
            reused.append(sequence.num_reused_tokens)
            assert eventually(partial(_is_freed, sequence))
    assert reused[0] == 0
    assert reused[1] >= 24 + num_image_tokens
    assert reused[2] == 24


def _is_freed(sequence: Sequence) -> bool:
    return sequence.source is None and sequence.encoded is None


@pytest.mark.usefixtures("short_prefixes")
@pytest.mark.parametrize("made", ["llava"], indirect=True)
def test_an_image_that_fails_in_the_encoder_fails_its_own_request_alone(
    made: Images, storage_kind: str
) -> None:
    asked = asked_of(made)
    own = expected(made, asked)
    bad, source = made.prompt(24, 12, 1)
    pixels = source.inputs["pixel_values"][..., :-1]
    broken = replace(source, inputs={**source.inputs, "pixel_values": pixels})
    engine, answers = engine_of(made, max_model_len=80), Answers()
    with running(engine):
        for one in answers.of([asked[1], Asked(bad, MAX_TOKENS, broken), *asked]):
            engine.submit([one])
        results = answers.wait(2 + len(asked))
        assert isinstance(results[1], EngineError)
        assert "encoding failed" in str(results[1])
        assert answers.completion(0).token_ids == own[1]
        # A request with the same digest may fail in its step; later it is computed.
        again = generate_all(engine, asked, at_first=2)
    assert again == own


@pytest.mark.parametrize("made", ["qwen3_vl"], indirect=True)
def test_the_same_image_is_encoded_once_within_the_bytes_that_are_kept(made: Images) -> None:
    calls = []
    made.model.model.visual.register_forward_hook(lambda *_: calls.append(1))
    (first, source), (second, other) = made.prompt(5, 4, 1), made.prompt(9, 9, 3)
    again = made.media.source([*first[:-1], 77], source.inputs, 1)
    entry = DecoderEntry(made.model, torch.device("cpu"), max_feature_bytes=2**16)
    entry.encode(first, source)
    entry.encode([*first[:-1], 77], again)
    assert len(calls) == 1
    size = entry.features.num_bytes
    entry.features.max_bytes = size
    entry.encode(second, other)
    assert len(calls) == 2
    assert entry.features.num_bytes <= size
    entry.encode(first, source)
    assert len(calls) == 3


# A tensor with an axis of images, of patches, and features of several layers.
@pytest.mark.parametrize("made", ["llava", "smolvlm", "qwen3_vl"], indirect=True)
def test_each_image_of_several_prompts_is_encoded_once(
    made: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, calls = made.model.model.get_image_features, []

    @wraps(compute)
    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return compute(*args, **kwargs)

    monkeypatch.setattr(made.model.model, "get_image_features", noted)
    engine = engine_of(made, max_num_batched_tokens=200)
    asked = [
        Asked(tokens, MAX_TOKENS, source)
        for tokens, source in (made.pair(1, 3), made.prompt(2, 2, 3), made.prompt(5, 9, 5))
    ]
    own = expected(made, asked)
    with running(engine):
        calls.clear()
        assert generate_all(engine, asked, at_first=3) == own
        assert len(calls) == 3
        assert generate_all(engine, asked[::-1], at_first=1) == own[::-1]
        assert len(calls) == 3


@pytest.mark.parametrize("made", ["llava", "qwen2_5_vl"], indirect=True)
def test_of_a_prompt_only_the_images_that_are_new_are_encoded(made: Images) -> None:
    rows: list[int] = []
    entry = DecoderEntry(made.model, torch.device("cpu"), max_feature_bytes=2**20)
    own = [entry.encode(*made.prompt(4, 3, seed)) for seed in (1, 3)]
    entry.features.clear()
    entry.features.by_item = True
    vision = made.model.get_encoder(modality="image")
    vision.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    entry.encode(*made.prompt(4, 3, 1))
    pair = entry.encode(*made.pair(1, 3))
    assert rows == [rows[0]] * 2
    length = own[0].num_tokens - 3
    assert pair.embeds is not None
    assert own[0].embeds is not None
    torch.testing.assert_close(pair.embeds[:length], own[0].embeds[:length])


@pytest.mark.parametrize("made", ["llava"], indirect=True)
def test_encoders_whose_images_change_each_other_see_each_prompt_alone(
    made: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = made.model.model.get_image_features

    def mixed(pixel_values: torch.Tensor, **kwargs: Any) -> Any:
        return compute(pixel_values - pixel_values.mean(0), **kwargs)

    monkeypatch.setattr(made.model.model, "get_image_features", mixed)
    asked = [Asked(tokens, MAX_TOKENS, one) for tokens, one in (made.pair(1, 3), made.pair(3, 5))]
    own = expected(made, asked)
    engine = engine_of(made)
    with running(engine):
        assert generate_all(engine, asked, at_first=2) == own


@pytest.mark.parametrize("made", ["llava"], indirect=True)
def test_an_image_that_is_no_number_changes_no_other(
    made: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = made.model.model.get_image_features

    def behind_a_mask(pixel_values: torch.Tensor, **kwargs: Any) -> Any:
        return compute(pixel_values + 0 * pixel_values.sum(), **kwargs)

    monkeypatch.setattr(made.model.model, "get_image_features", behind_a_mask)
    asked = [Asked(tokens, MAX_TOKENS, one) for tokens, one in (made.pair(1, 3), made.pair(3, 5))]
    own = expected(made, asked)
    bad, source = made.prompt(24, 24, 9)
    pixels = source.inputs["pixel_values"] * torch.nan
    broken = replace(source, inputs={**source.inputs, "pixel_values": pixels})
    engine, answers = engine_of(made, max_num_batched_tokens=128), Answers()
    with running(engine):
        engine.submit(answers.of([Asked(bad, MAX_TOKENS, broken), *asked]))
        results = answers.wait(3)
    assert str(results[0]) == NO_NUMBERS
    assert [answers.completion(number).token_ids for number in (1, 2)] == own


@pytest.mark.parametrize("made", ["llava"], indirect=True)
def test_a_model_whose_processor_refuses_the_trial_is_not_held(made: Images) -> None:
    def refuse() -> list[tuple[list[int], Source]]:
        raise RequestError("the model's processor refused it")

    with_trial, asked = replace(setup(made.model), trial_prompts=refuse), asked_of(made)[:2]
    own = expected(made, asked)
    with pytest.raises(UnsupportedModelError, match="with images: the model's processor refused"):
        InFlightEngine(with_trial).start()
    generating = start_from_setup("tiny", replace(with_trial, compiled=False))  # tries packed steps
    assert generate_all(generating, asked, at_first=2) == own
    generating.stop()


@pytest.mark.parametrize("made", ["qwen2_5_vl"], indirect=True)
def test_decodes_that_take_another_rows_positions_are_refused(
    made: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mixed_up(step: Step) -> list[Part]:
        parts, num_decodes = parts_of(step), len(step.decodes)
        decodes = [replace(part, encoded=parts[0].encoded) for part in parts[:num_decodes]]
        return decodes + parts[num_decodes:]

    monkeypatch.setattr(transformers_runner, "parts_of", mixed_up)
    with pytest.raises(UnsupportedModelError, match="packed with images and cache: logits differ"):
        engine_of(made).start()


@pytest.mark.parametrize("made", ["qwen2_5_vl"], indirect=True)
def test_the_generate_engine_takes_images_too(made: Images) -> None:
    asked = asked_of(made)[:3]
    own = expected(made, asked)
    with running(GenerateEngine(setup(made.model))) as engine:
        assert generate_all(engine, asked, at_first=3) == own
