"""What is counted of a decoder's step."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from transformers import LlamaForCausalLM

from perf.model import llama_config
from perf.roofline.measured import measure
from perf.roofline.step import DecoderShape, Decoding, Machine, step_cost, tokens_per_s_limit

MACHINE = Machine(10e9, 100e9, 200e9, 2)


def test_parameters_are_those_of_the_models_linear_layers() -> None:
    config = llama_config()
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    linears = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    shape = DecoderShape.of(config)
    assert shape.num_head_parameters == model.lm_head.weight.numel()
    total = sum(linear.weight.numel() for linear in linears)
    assert shape.num_body_parameters + shape.num_head_parameters == total


def test_one_sequence_waits_for_the_weights_and_many_for_the_products() -> None:
    shape = DecoderShape.of(llama_config())
    parameters = shape.num_body_parameters + shape.num_head_parameters
    one = tokens_per_s_limit(MACHINE, shape, Decoding(1, mean_context=0))
    assert one == pytest.approx(10e9 / (4 * parameters))
    many = tokens_per_s_limit(MACHINE, shape, Decoding(1000, mean_context=0))
    assert many == pytest.approx(100e9 / (2 * parameters))


def test_weights_stored_in_half_the_bytes_are_read_twice_as_fast() -> None:
    shape = DecoderShape.of(llama_config())
    whole = tokens_per_s_limit(MACHINE, shape, Decoding(1, 0))
    halves = tokens_per_s_limit(MACHINE, shape, Decoding(1, 0, weight_dtype="float16"))
    assert halves == pytest.approx(2 * whole)


def test_context_costs_bytes_and_operations_and_prompts_cost_operations() -> None:
    shape = DecoderShape(100, 10, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8)
    cost = step_cost(shape, Decoding(5, mean_context=7, dtype="bfloat16", prompt_tokens=1.0))
    assert cost.weight_bytes == 110 * 2
    assert cost.kv_bytes == 5 * 7 * (2 * 3 * 2 * 8) * 2
    assert cost.flop == 2 * (10 * 100 + 5 * 10) + 4 * 10 * 7 * (3 * 4 * 8)


def test_a_measured_machine_has_ceilings_above_zero() -> None:
    machine = measure()
    assert machine.num_threads == torch.get_num_threads()
    assert min(machine.as_figures().values()) > 0


def test_heads_may_have_a_size_of_their_own() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 10}
    config = Namespace(**sizes, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    shape = DecoderShape.of(config)
    queries_and_output, keys_and_values, mlp = 2 * 64 * 4 * 32, 2 * 64 * 2 * 32, 3 * 64 * 128
    assert shape.num_body_parameters == queries_and_output + keys_and_values + mlp
