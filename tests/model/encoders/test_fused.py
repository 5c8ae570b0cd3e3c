"""The fused runner, and those through transformers, give what the model gives of each text alone,
in both dtypes.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest
import torch
import transformers

from hf_triton.encoder.fused.fused_encoder_runner import FusedRunner
from hf_triton.encoder.runners.encoder_runner import (
    RunnerSetup,
    largest_difference,
    random_encodings,
    reference_forward,
    select_runner,
)
from hf_triton.encoder.runners.packed_runner import PackedRunner
from hf_triton.encoder.runners.padded_runner import EQUAL_LENGTHS, PaddedRunner
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime.attention import OwnAttention
from hf_triton.runtime.devices.prepacked_linear import prepack
from hf_triton.runtime.fused.parts import UnsupportedLayersError
from tests.support.tiny_encoders import ARCHITECTURES

LONGEST = 512
_LENGTHS = (1, 3, 50, 50, 17, LONGEST)
_SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "pad_token_id": 1,  # as MPNet has it in its code
    **{f"{name}_token_id": 2 for name in ("bos", "eos", "cls", "sep", "mask")},
}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
SHAPES: dict[str, dict[str, Any]] = {
    **{name: changes for name, (changes, _) in ARCHITECTURES.items()},
    "distilbert": {"dim": 64, "n_heads": 4, "n_layers": 2, "hidden_dim": 96},
    "nomic_bert": {},
    "gte": {},
    "eurobert": {},
    "jina_embeddings_v3": {},
    "qwen3": _GROUPED,
    "mistral": {**_GROUPED, "sliding_window": 20},
}
NOT_PACKED = ("deberta-v2", "mpnet")  # attention of their own
_EACH = list(itertools.product(SHAPES, (torch.float32, torch.bfloat16)))


def tiny_setup(name: str, dtype: torch.dtype = torch.float32, **changes: Any) -> RunnerSetup:
    shape = {**_SHAPE, **SHAPES.get(name, {}), "max_position_embeddings": LONGEST + 2, **changes}
    config = transformers.AutoConfig.for_model(name, **shape)
    torch.manual_seed(5)
    model = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    has_types = "token_type_ids" in inspect.signature(model.forward).parameters
    types = has_types and getattr(config, "type_vocab_size", 0) > 1
    return RunnerSetup(model.to(dtype), torch.device("cpu"), "hidden", LONGEST, types)


def whole_texts(setup: RunnerSetup, lengths: tuple[int, ...] = _LENGTHS) -> list[Encoding]:
    """Random texts of which every token is wanted, some of two types."""
    found = []
    for encoding in random_encodings(setup, lengths):
        types = encoding.token_type_ids
        if types is not None:
            types = [*types[: len(types) // 2], *[1] * (len(types) - len(types) // 2)]
        found.append(Encoding(encoding.input_ids, types))
    return found


@pytest.mark.parametrize("name, dtype", _EACH)
def test_texts_of_every_length_are_computed_as_transformers_does(
    name: str, dtype: torch.dtype
) -> None:
    setup = tiny_setup(name, dtype)
    texts = whole_texts(setup)
    expected = [reference_forward(setup, text) for text in texts]
    allowed = 2e-5 if dtype == torch.float32 else 5e-2
    own_attention = OwnAttention(setup.model)
    other = select_runner(setup, (PackedRunner, PaddedRunner, EQUAL_LENGTHS))
    assert isinstance(other, PackedRunner) == (name not in NOT_PACKED)
    assert largest_difference(other.forward(texts), expected) < allowed
    own_attention.restore()
    prepack(setup.model)
    assert largest_difference(FusedRunner(setup).forward(texts), expected) < allowed


@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_an_activation_is_computed_in_place_after_a_prepacked_product(activation: str) -> None:
    setup = tiny_setup("bert", hidden_act=activation)
    texts = whole_texts(setup)
    expected = [reference_forward(setup, text) for text in texts]
    prepack(setup.model)
    assert largest_difference(FusedRunner(setup).forward(texts), expected) < 2e-5


def test_a_position_bias_is_read_beside_large_scores() -> None:
    setup = tiny_setup("mpnet", hidden_size=256, num_attention_heads=2)
    with torch.no_grad():
        for layer in setup.model.encoder.layer:
            layer.attention.attn.q.weight.mul_(300)
    texts = whole_texts(setup, (8, 65))
    expected = [reference_forward(setup, text) for text in texts]
    assert largest_difference(FusedRunner(setup).forward(texts), expected) < 1e-3


def test_what_is_not_recognised_is_not_fused() -> None:
    setup = tiny_setup("bert")
    layer = setup.model.encoder.layer[1]
    layer.output.register_forward_hook(lambda module, args, output: output * 1.5)
    with pytest.raises(UnsupportedLayersError):
        FusedRunner(setup)
    assert isinstance(select_runner(setup, (FusedRunner, PackedRunner)), PackedRunner)


def test_padding_that_a_text_has_is_not_counted() -> None:
    setup = tiny_setup("roberta")
    texts = [Encoding([5, 1, 7, 1, 1, 9], None), Encoding([5, 6, 7], None)]
    expected = [reference_forward(setup, text) for text in texts]
    for runner in (FusedRunner(setup), PackedRunner(setup)):
        assert largest_difference(runner.forward(texts), expected) < 2e-5


def test_texts_whose_masks_count_are_not_packed() -> None:
    setup = tiny_setup("esm", torch.bfloat16, token_dropout=True, mask_token_id=3)
    texts = [Encoding([5, 3, 7], None), Encoding([5, 6, 7, 8, 9, 10], None)]
    expected = [reference_forward(setup, text) for text in texts]
    runner = select_runner(setup, (FusedRunner, PackedRunner, PaddedRunner, EQUAL_LENGTHS))
    assert largest_difference(runner.forward(texts), expected) < 5e-2


@pytest.mark.parametrize("activation", ["relu6", "gelu_10"])
def test_activations_that_clip_do(activation: str) -> None:
    setup = tiny_setup("bert", hidden_act=activation)
    with torch.no_grad():
        setup.model.encoder.layer[0].intermediate.dense.weight.mul_(50)
    texts = whole_texts(setup, (3, 17))
    expected = [reference_forward(setup, text) for text in texts]
    assert largest_difference(FusedRunner(setup).forward(texts), expected) < 2e-5


def test_several_tables_of_types_are_refused() -> None:
    setup = tiny_setup("layoutlm", type_vocab_size=1)
    with pytest.raises(UnsupportedLayersError, match="several tables"):
        FusedRunner(setup)


def test_long_texts_do_not_change_the_angles_of_short_ones() -> None:
    angles = {"short_factor": [1.0] * 8, "long_factor": [3.0] * 8, "rope_theta": 10000.0}
    limit = {"rope_type": "longrope", "original_max_position_embeddings": 64, "factor": 8.0}
    setup = tiny_setup("llama", **SHAPES["qwen3"], rope_parameters={**angles, **limit})
    texts = whole_texts(setup, (60, 66))
    expected = [reference_forward(setup, text) for text in texts]
    runner = select_runner(setup, (FusedRunner, PackedRunner, PaddedRunner, EQUAL_LENGTHS))
    assert largest_difference(runner.forward(texts), expected) < 2e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "changes",
    [
        {"pos_att_type": ["c2p"]},
        {"pos_att_type": ["p2c"], "share_att_key": False, "position_buckets": -1},
        {"share_att_key": False, "max_relative_positions": 40, "position_buckets": -1},
        {"relative_attention": False},
    ],
    ids=["by queries", "by keys", "by near distances", "by no distance"],
)
def test_deberta_attends_by_distances(changes: dict[str, Any], dtype: torch.dtype) -> None:
    setup = tiny_setup("deberta-v2", dtype, **changes)
    texts = whole_texts(setup)
    expected = [reference_forward(setup, text) for text in texts]
    difference = largest_difference(FusedRunner(setup).forward(texts), expected)
    assert difference < (2e-5 if dtype == torch.float32 else 5e-2)


@pytest.mark.parametrize(
    "name, changes, why",
    [
        ("deberta", {"relative_attention": True}, "computes attention in its own way"),
        ("deberta-v2", {"conv_kernel_size": 3}, "a layer does not take its predecessor's output"),
    ],
)
def test_other_debertas_run_as_they_are(name: str, changes: dict[str, Any], why: str) -> None:
    setup = tiny_setup(name, **changes)
    with pytest.raises(UnsupportedLayersError, match=why):
        FusedRunner(setup)
    taken = select_runner(setup, (FusedRunner, EQUAL_LENGTHS))
    assert taken.name == EQUAL_LENGTHS.name


def test_a_layer_that_is_another_for_some_texts_is_caught_by_the_trial() -> None:
    setup = tiny_setup("bert")
    dense = setup.model.encoder.layer[0].output.dense

    def changed(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output * 2 if output.shape[1] > 8 else output

    dense.register_forward_hook(changed)
    taken = select_runner(setup, (FusedRunner, EQUAL_LENGTHS))
    assert taken.name == EQUAL_LENGTHS.name
