"""Quantized weights: what is loaded, which runner takes it, that its tokens are the quantized
model's own, and what is refused in one line.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    quantize_,
)
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from hf_triton.runtime.devices import prepacked_linear
from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.devices.prepacked_linear import Int8Linear, digits_of, prepack
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.own_environment import lacks
from hf_triton.runtime.weights.weight_loading import load_config, load_model
from hf_triton.text_generation.engines.generate.generate_engine import GenerateEngine
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from tests.model.engine.runners.test_lora import adapters_of, generated, mixed_adapters
from tests.model.engine.runtime.test_weights import served
from tests.support.driving import generate_all, running, setup
from tests.support.tiny_adapters import peft_reference, read
from tests.support.tiny_models import T5, mixed_load, random_encoder_decoder, reference, tiny_model

CPU = Placement("cpu", {"": "cpu"})
CONFIGS = {
    "int8": Int8WeightOnlyConfig(set_inductor_config=False),
    "int8_dynamic": Int8DynamicActivationInt8WeightConfig(set_inductor_config=False),
}
# Shares of the largest output: an input in two digits is finer than bfloat16, in one it is
# torchao's own rounding, the other way now and then.
DIFFERENCES = {
    ("int8", torch.float32): 1e-4,
    ("int8", torch.bfloat16): 2e-2,
    ("int8_dynamic", torch.float32): 2e-2,
    ("int8_dynamic", torch.bfloat16): 3e-2,
}


# Without VNNI a CPU saturates products of bytes; layers stay torchao's there, which is tested too.
needs_exact_products = pytest.mark.skipif(
    not prepacked_linear.multiplies_exactly(), reason="this CPU multiplies bytes inexactly"
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    tiny_model("llama").save_pretrained(folder)
    return folder


def quantized(weights: Path, auto_class: Any = AutoModelForCausalLM, **asked: Any) -> Any:
    model = served(weights, str(weights), local=True, quantization=asked)
    return load_model(model, weights, auto_class, load_config(model, weights), CPU)


def layer(method: str, dtype: torch.dtype, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    linear = nn.Linear(48, 80, bias).to(dtype)
    quantize_(linear, CONFIGS[method])
    return linear


@needs_exact_products
@pytest.mark.parametrize("num_rows, bias", [(1, True), (33, False)])
@pytest.mark.parametrize("method, dtype", DIFFERENCES, ids=str)
@torch.no_grad()
def test_whole_numbers_give_what_torchao_gives(
    method: str, dtype: torch.dtype, num_rows: int, bias: bool
) -> None:
    linear = layer(method, dtype, bias)
    x = torch.randn(2, num_rows, 48).to(dtype)
    x[0, 0] = 0
    expected = linear(x)
    got = Int8Linear([linear.weight], linear.bias)(x)
    assert (got.dtype, got.shape) == (dtype, expected.shape)
    worst = (got - expected).abs().max() / expected.abs().max()
    assert worst <= DIFFERENCES[method, dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_digits", [1, 2])
def test_digits_are_the_nearest_whole_numbers(num_digits: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(7, 150) * torch.logspace(-30, 30, 7).unsqueeze(1)).to(dtype)
    x[3] = 0
    digits, scales = digits_of(x[:, 10:90], num_digits)  # not contiguous
    numbers = torch.zeros(7, 80, dtype=torch.float64)
    for digit in digits.view(num_digits, 7, 80):
        numbers = numbers * 256 + digit
    numbers -= prepacked_linear.ZERO_POINT[num_digits]
    wide = x[:, 10:90].double()
    assert (numbers - wide / scales.double().unsqueeze(1)).abs().max() <= 0.51
    # The largest of each row is the largest number.
    assert (
        numbers.abs().amax(dim=1).tolist()
        == [2 ** (8 * num_digits - 1) - 1.0] * 3 + [0.0] + [2 ** (8 * num_digits - 1) - 1.0] * 3
    )


@needs_exact_products
@torch.no_grad()
def test_numbers_that_are_not_finite_stay_in_their_row() -> None:
    linear = layer("int8", torch.float32)
    x = torch.randn(5, 48)
    expected = Int8Linear([linear.weight], linear.bias)(x)
    x[1, 7], x[3, 0] = torch.nan, torch.inf
    got = Int8Linear([linear.weight], linear.bias)(x)
    assert torch.equal(got[::2], expected[::2])
    assert not got[1::2].isfinite().any()


@needs_exact_products
@pytest.mark.parametrize("method", CONFIGS)
@torch.no_grad()
def test_a_rows_outputs_do_not_depend_on_the_rows_beside_it(method: str) -> None:
    linear = layer(method, torch.float32)
    packed = Int8Linear([linear.weight], linear.bias)
    x = torch.randn(33, 48)
    x[1] *= 1000
    assert torch.equal(packed(x)[0], packed(x[:1])[0])
    assert packed(x[:0]).shape == (0, 80)


@pytest.mark.parametrize("name", ["llama", "gemma2", "falcon-new"])
def test_an_int8_model_generates_the_quantized_models_own_tokens(name: str, tmp_path: Path) -> None:
    tiny_model(name).save_pretrained(tmp_path)
    model, asked = quantized(tmp_path, method="int8"), mixed_load(6)
    expected = reference(model, asked)
    made = dataclasses.replace(setup(model, max_num_seqs=4), prepare=prepack)
    with running(InFlightEngine(made)) as engine:
        assert generate_all(engine, asked, at_first=5) == expected


@pytest.mark.parametrize("method", CONFIGS)
@pytest.mark.parametrize("is_exact", [True, False])
def test_layers_are_quantized_but_the_embeddings_and_those_left_out(
    is_exact: bool,
    method: str,
    weights: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Products that are not exact stay torchao's."""
    monkeypatch.setattr(prepacked_linear, "multiplies_exactly", lambda: is_exact)
    model = quantized(weights, method=method)
    mlp = model.model.layers[0].mlp
    assert type(mlp.down_proj.weight).__name__ == "Int8Tensor"
    prepack(model)
    assert isinstance(mlp.down_proj, Int8Linear) is is_exact
    assert not isinstance(model.lm_head, Int8Linear)
    model = quantized(weights, method=method, modules_to_not_convert=[".*up_proj"])
    assert type(model.model.layers[0].mlp.up_proj.weight) is nn.Parameter


def widened(model: Any) -> Any:
    """The tiny Llama with a quantized one's weights, as floating point."""
    wide = tiny_model("llama")
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            weight: Any = module.weight
            is_quantized = hasattr(weight, "dequantize") and type(weight) is not nn.Parameter
            wide.get_submodule(name).weight = nn.Parameter(
                weight.dequantize() if is_quantized else weight, requires_grad=False
            )
    return wide


@pytest.mark.parametrize("prepare", [prepack, lambda model: None], ids=["prepacked", "plain"])
def test_adapters_of_a_quantized_model_give_the_tokens_of_pefts_own(
    prepare: Any, weights: Path, tmp_path: Path
) -> None:
    model = quantized(weights, method="int8")
    folders = adapters_of("llama", tiny_model("llama"), tmp_path)
    asked = mixed_adapters()
    expected = peft_reference(widened(model), folders, asked)
    made = dataclasses.replace(
        setup(model, max_num_seqs=5), prepare=prepare, adapters=read(model, folders)
    )
    with running(InFlightEngine(made)) as engine:
        assert "(fused, adapters)" in engine.description
        assert generated(engine, asked, at_once=len(asked)) == expected
        assert generated(engine, asked, at_once=1) == expected


def test_an_encoder_decoder_generates_with_int8(tmp_path: Path) -> None:
    random_encoder_decoder("t5", **T5).save_pretrained(tmp_path)
    model = quantized(tmp_path, AutoModelForSeq2SeqLM, method="int8")
    assert type(model.encoder.block[0].layer[0].SelfAttention.q.weight).__name__ == "Int8Tensor"
    with running(GenerateEngine(setup(model, max_num_seqs=4))) as engine:
        assert len(generate_all(engine, mixed_load(2), at_first=2)) == 2


def test_a_model_without_a_layer_to_quantize_is_refused(tmp_path: Path) -> None:
    tiny_model("gpt2").save_pretrained(tmp_path)
    assert refused(tmp_path, method="int8") == (
        "quantization: GPT2LMHeadModel has no layers that this method quantizes; "
        "bitsandbytes_8bit and bitsandbytes_4bit take more kinds"
    )


def refused(weights: Path, **asked: Any) -> str:
    with pytest.raises(LoadError) as raised:
        quantized(weights, **asked)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_int4_is_refused_on_a_cpu(weights: Path) -> None:
    assert refused(weights, method="int4") == (
        "quantization: int4 needs a GPU, and this instance runs on the CPU: bitsandbytes_4bit runs "
        "on both"
    )


@pytest.mark.parametrize(
    "method, package",
    [("int8", "torchao>=0.17,<0.19"), ("bitsandbytes_4bit", "bitsandbytes>=0.49,<0.51")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    method: str, package: str, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = package.partition(">")[0]
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError) as raised:
        quantized(weights, method=method)
    assert lacks(weights, raised.value) == (
        f"the server's Python, {sys.prefix}, lacks {name}, which this model needs: "
        f"pip install '{package}'"
    )


def saved_by(method: str, weights: Path, folder: Path) -> Path:
    for file in weights.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": 32}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "method, package",
    [("gptq", "optimum"), ("awq", "gptqmodel"), ("compressed-tensors", "compressed-tensors")],
)
def test_a_checkpoint_saved_quantized_names_what_it_needs(
    method: str, package: str, weights: Path, tmp_path: Path
) -> None:
    folder = saved_by(method, weights, tmp_path)
    model = served(folder, str(folder), local=True)
    with pytest.raises(LoadError, match=package) as raised:
        load_model(model, folder, AutoModelForCausalLM, load_config(model, folder), CPU)
    assert "\n" not in str(raised.value)


def test_a_checkpoint_saved_quantized_is_not_quantized_again(weights: Path, tmp_path: Path) -> None:
    folder = saved_by("gptq", weights, tmp_path)
    assert refused(folder, method="int8") == (
        f"quantization: got int8, but the weights of {folder} are quantized already (gptq): "
        "leave the key out"
    )
