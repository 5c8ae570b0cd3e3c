"""Prepacked and plain linear layers give the same numbers; layers stay plain where the operator is
missing.
"""

from __future__ import annotations

import copy
import math
import subprocess
import sys
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.falcon.modeling_falcon import FalconLinear
from transformers.pytorch_utils import Conv1D

from hf_triton.runtime.devices.prepacked_linear import (
    Float16StoredLinear,
    LinearPart,
    PrepackedLinear,
    prepack,
)
from hf_triton.text_generation.engine.own_logits import own_logits
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from tests.support.architectures.configurations import tiny_config
from tests.support.driving import generate_all, running, setup
from tests.support.tiny_models import mixed_load, reference, tiny_model
from tests.support.triton import ROOT

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"
)
needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 on this CPU"
)
GROWTH = """
import psutil, torch
from hf_triton.runtime.devices.prepacked_linear import PrepackedLinear
torch.set_num_threads(1)
linear, x = PrepackedLinear([torch.randn(256, 128)], None), torch.randn(1100, 128)
with torch.inference_mode():
    for number in range(1, 1101):
        linear(x[:number])
        if number == 300:
            before = psutil.Process().memory_info().rss
print((psutil.Process().memory_info().rss - before) // 2**20)
"""
FORMS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(48, 80),
    "linear without bias": lambda: nn.Linear(48, 80, bias=False),
    "GPT-2's, transposed": lambda: Conv1D(80, 48),
    "Falcon's": lambda: FalconLinear(48, 80),
}


def half_exact(linear: nn.Linear) -> nn.Linear:
    """The layer with the nearest weights that float16 holds."""
    with torch.no_grad():
        linear.weight.copy_(linear.weight.half())
    return linear


def layer(form: str, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    module = FORMS[form]()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return nn.Sequential(module).to(dtype)


@needs_onednn
@pytest.mark.parametrize(
    "dtype, num_rows",
    [
        (torch.float32, 1),
        (torch.float32, 32),
        pytest.param(torch.bfloat16, 7, marks=needs_bfloat16),
    ],
)
@pytest.mark.parametrize("form", FORMS)
@torch.inference_mode()
def test_both_forms_give_the_same_numbers(form: str, dtype: torch.dtype, num_rows: int) -> None:
    model = layer(form, dtype)
    x = torch.randn(2, num_rows, 48, dtype=dtype)
    plain = model(x)
    assert prepack(model) == 1
    assert isinstance(model[0], PrepackedLinear)
    packed = model(x)
    assert packed.dtype == model[0].weight.dtype == dtype
    # bfloat16 keeps 8 bits; a value of 48 terms of size 1 is rounded once or twice.
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 0.1}
    torch.testing.assert_close(packed, plain, **close)  # type: ignore[arg-type]


@needs_onednn
@pytest.mark.parametrize(
    "name, num_joined",
    [
        *[("llama", 10), ("qwen2", 10), ("gemma2", 10), ("opt", 6), ("gpt2", 0), ("falcon-new", 0)],
        *[("mamba", 0), ("mamba2", 0), ("qwen3-next", 7), ("jamba", 5)],
    ],
)
def test_a_prepacked_model_generates_the_same_tokens(name: str, num_joined: int) -> None:
    model, asked = tiny_model(name), mixed_load(6)
    expected = reference(model, asked)
    assert prepack(model) > 4
    assert sum(isinstance(module, LinearPart) for module in model.modules()) == num_joined
    with running(InFlightEngine(setup(model, max_num_seqs=4))) as engine:
        assert generate_all(engine, asked, at_first=5) == expected


@needs_onednn
@pytest.mark.parametrize(
    "name, sizes",
    [
        ("reformer", {"hash_seed": 0}),
        ("longcat_flash", {}),
        ("rwkv", {"num_hidden_layers": 3, "rescale_every": 1}),
    ],
)
@torch.inference_mode()
def test_layers_whose_weight_a_parent_reads_stay_plain(name: str, sizes: dict[str, int]) -> None:
    config = tiny_config(name)
    config.update(sizes)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    prompt = torch.arange(5, 25).unsqueeze(0)  # more than a chunk of Reformer's
    expected = own_logits(copy.deepcopy(model), [[9, 10]], prompt)
    assert prepack(model) > 0
    torch.testing.assert_close(own_logits(model, [[9, 10]], prompt), expected, rtol=0, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize("num_rows", [1, 7, 32])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_weights_stored_in_half_give_the_same_numbers(bias: bool, num_rows: int) -> None:
    plain = half_exact(nn.Linear(48, 80, bias=bias))
    # Down to float16's smallest and up to its largest value.
    plain.weight[0, :3] = torch.tensor([2.0**-24, 65504.0, -(2.0**-15)])
    stored = Float16StoredLinear([plain.weight], plain.bias)
    x = torch.randn(2, num_rows, 64)[..., 8:56]  # not contiguous, as a part of joined layers is
    torch.testing.assert_close(stored(x), plain(x), rtol=1e-5, atol=1e-3)
    one_hot = torch.eye(48).unsqueeze(0)
    exact = plain.weight.t() + plain.bias if bias else plain.weight.t()
    assert torch.equal(stored(one_hot)[0], exact)


# Times 2 to 18 they are float16's largest and least numbers of 8 bits, and one between.
_OF_BFLOAT16 = (255 / 1024, -(2.0**-42), 129 * 2.0**-42, -3.125e-2)


@needs_onednn
@pytest.mark.parametrize("times", [1.0, 2.0**30, 2.0**-40])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_weights_saved_in_bfloat16_are_stored_in_16_bits_and_none_is_rounded(
    bias: bool, times: float
) -> None:
    plain = nn.Linear(48, 80, bias=bias)
    plain.weight.mul_(1 / 8)
    plain.weight[0, :4] = torch.tensor(_OF_BFLOAT16)
    plain.weight.copy_(plain.weight.bfloat16() * times)
    assert not torch.equal(plain.weight.half().float(), plain.weight)
    stored = Float16StoredLinear([plain.weight], plain.bias)
    exact = plain.weight.t() + plain.bias if bias else plain.weight.t()
    assert torch.equal(stored(torch.eye(48)), exact)
    x = torch.randn(2, 7, 48)
    torch.testing.assert_close(stored(x), plain(x), rtol=1e-5, atol=1e-4 * times)


@pytest.mark.parametrize("value", [1.0 + 2.0**-12, 70000.0, 2.0**-44, math.inf, math.nan, 2.0**127])
def test_a_weight_that_float16_would_round_is_not_stored_in_half(value: float) -> None:
    layer = half_exact(nn.Linear(8, 8))
    Float16StoredLinear([layer.weight], None)
    with torch.no_grad():
        layer.weight[3, 3] = value
    with pytest.raises(RuntimeError, match="float16 would round"):
        Float16StoredLinear([layer.weight], None)


@needs_onednn
def test_each_layer_takes_a_form_that_its_own_weight_allows() -> None:
    model = nn.Sequential(half_exact(nn.Linear(8, 8)), nn.Linear(8, 8), half_exact(nn.Linear(8, 8)))
    assert prepack(model) == 3
    assert [type(layer) for layer in model] == [
        Float16StoredLinear,
        PrepackedLinear,
        Float16StoredLinear,
    ]


@needs_onednn
@pytest.mark.parametrize(
    "capability, form", [("AVX512", PrepackedLinear), ("AVX2", Float16StoredLinear)]
)
def test_many_rows_are_multiplied_in_float32_where_avx512_does(
    capability: str, form: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    model = nn.Sequential(half_exact(nn.Linear(8, 8)))
    assert prepack(model, many_rows=True) == 1
    assert type(model[0]) is form


@pytest.mark.parametrize(
    "failure",
    [AttributeError("no operator"), RuntimeError("no oneDNN"), ImportError("no Numba")],
)
def test_layers_stay_plain_where_the_operator_is_missing(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> Any:
        raise failure

    monkeypatch.setattr(PrepackedLinear, "__init__", missing)
    monkeypatch.setattr(Float16StoredLinear, "__init__", missing)
    model = layer("linear")
    assert prepack(model) == 0
    assert type(model[0]) is nn.Linear


class Branches(nn.Module):
    """Two layers that may be given one tensor, or two."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 4), nn.Linear(8, 6)


# prepack takes them for transformers' own modules by these.
Branches.__module__ = "transformers.models.example"
Branches.config = SimpleNamespace(is_encoder_decoder=False)  # type: ignore[attr-defined]


@needs_onednn
@pytest.mark.parametrize("order", ["gate_proj up_proj", "up_proj gate_proj", "up_proj up_proj"])
@torch.inference_mode()
def test_joined_layers_answer_in_any_order_and_for_different_inputs(order: str) -> None:
    model, plain = Branches(), Branches()
    plain.load_state_dict(model.state_dict())
    assert prepack(model) == 2
    one, other = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    for x in (one, other, one):
        for name in order.split():
            torch.testing.assert_close(getattr(model, name)(x), getattr(plain, name)(x))
    torch.testing.assert_close(model.gate_proj(one), plain.gate_proj(one))
    torch.testing.assert_close(model.up_proj(other), plain.up_proj(other))


@needs_onednn
@torch.inference_mode()
def test_joined_layers_keep_nothing_once_all_were_asked() -> None:
    model = Branches()
    prepack(model)
    x = torch.randn(1, 3, 8)
    held = weakref.ref(x)
    model.gate_proj(x), model.up_proj(x)
    del x
    assert held() is None


@needs_onednn
@pytest.mark.parametrize(
    "module, is_encoder_decoder", [("transformers_modules.theirs", False), ("transformers.a", True)]
)
def test_layers_are_not_joined_where_their_inputs_may_differ(
    module: str, is_encoder_decoder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Branches, "__module__", module)
    monkeypatch.setattr(Branches.config, "is_encoder_decoder", is_encoder_decoder)  # type: ignore[attr-defined]
    model = Branches()
    assert prepack(model) == 2
    assert isinstance(model.gate_proj, PrepackedLinear)


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(4, 4, dtype=torch.float16),
        nn.Linear(4, 4, device="meta"),
        nn.Embedding(4, 4),
        type("Adapted", (nn.Linear,), {})(4, 4),
    ],
    ids=["float16", "not on the CPU", "embedding", "a subclass of Linear"],
)
def test_other_layers_are_left_alone(module: nn.Module) -> None:
    model = nn.Sequential(module)
    assert prepack(model) == 0
    assert model[0] is module


@needs_onednn
def test_memory_settles_however_many_numbers_of_rows_are_multiplied() -> None:
    found = subprocess.run(
        [sys.executable, "-c", GROWTH], cwd=ROOT, capture_output=True, check=True
    )
    assert int(found.stdout) < 250, "MiB; 560 with the libraries' own capacities"
