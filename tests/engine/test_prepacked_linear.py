"""Prepacked and plain linear layers give the same numbers; layers stay plain where the operator is
missing or slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hf_runtime import prepacked_linear
from hf_runtime.prepacked_linear import PrepackedLinear, prepack
from text_generation.in_flight import InFlightEngine
from torch import nn
from transformers.models.falcon.modeling_falcon import FalconLinear
from transformers.pytorch_utils import Conv1D

from tests.engine.driving import generate_all, running, setup
from tests.engine.tiny_models import mixed_load, reference, tiny_model

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"
)
FORMS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(48, 80),
    "linear without bias": lambda: nn.Linear(48, 80, bias=False),
    "GPT-2's, transposed": lambda: Conv1D(80, 48),
    "Falcon's": lambda: FalconLinear(48, 80),
}


@pytest.fixture
def always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepacked_linear, "_prepacked_is_faster", lambda *_: True)


def layer(form: str, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    module = FORMS[form]()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return nn.Sequential(module).to(dtype)


@needs_onednn
@pytest.mark.usefixtures("always_faster")
@pytest.mark.parametrize("num_rows", [1, 7, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", FORMS)
@torch.inference_mode()
def test_both_forms_give_the_same_numbers(form: str, dtype: torch.dtype, num_rows: int) -> None:
    model = layer(form, dtype)
    x = torch.randn(2, num_rows, 48, dtype=dtype)
    plain = model(x)
    assert prepack(model) == 1
    assert isinstance(model[0], PrepackedLinear)
    packed = model(x)
    assert packed.dtype == dtype
    # bfloat16 keeps 8 bits; a value of 48 terms of size 1 is rounded once or twice.
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 0.1}
    torch.testing.assert_close(packed, plain, **close)  # type: ignore[arg-type]


@needs_onednn
@pytest.mark.usefixtures("always_faster")
@pytest.mark.parametrize("name", ["llama", "gpt2", "falcon-new"])
def test_a_prepacked_model_generates_the_same_tokens(name: str) -> None:
    model, asked = tiny_model(name), mixed_load(6)
    expected = reference(model, asked)
    assert prepack(model) > 4
    with running(InFlightEngine(setup(model, max_num_seqs=4))) as engine:
        assert generate_all(engine, asked, at_first=5) == expected


@needs_onednn
def test_a_prepacked_layer_keeps_the_weights_dtype_for_modules_that_look() -> None:
    packed = PrepackedLinear(torch.zeros(4, 3, dtype=torch.bfloat16), None)
    assert packed.weight.dtype == torch.bfloat16
    assert (packed.in_features, packed.out_features) == (3, 4)


@pytest.mark.parametrize("failure", [AttributeError("no operator"), RuntimeError("no oneDNN")])
def test_layers_stay_plain_where_the_operator_is_missing(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Any:
        raise failure

    monkeypatch.setattr(prepacked_linear, "_operators", missing)
    model = layer("linear")
    assert prepack(model) == 0
    assert type(model[0]) is nn.Linear


@needs_onednn
@pytest.mark.parametrize("plain_s, replaced", [(2.0, 2), (1.0, 0)])
def test_each_shape_is_timed_once_and_replaced_where_it_gains(
    plain_s: float, replaced: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = []

    def seconds(timed_layer: nn.Module, x: torch.Tensor) -> float:
        timed.append(timed_layer)
        return 1.0 if isinstance(timed_layer, PrepackedLinear) else plain_s

    monkeypatch.setattr(prepacked_linear, "_seconds", seconds)
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    assert prepack(model) == replaced
    assert len(timed) == 4  # two forms of one shape, at two row counts


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
@pytest.mark.usefixtures("always_faster")
def test_other_layers_are_left_alone(module: nn.Module) -> None:
    model = nn.Sequential(module)
    assert prepack(model) == 0
    assert model[0] is module
