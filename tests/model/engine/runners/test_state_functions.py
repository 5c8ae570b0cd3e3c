"""The compiled convolution and recurrences against plain ones in float64, over a row of several
sequences: some that begin, some that go on, of one token and of many, some of whose states are
copied on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hf_triton.text_generation.forward.states.compiled_functions import CompiledFunctions
from hf_triton.text_generation.forward.states.row import UnsupportedStatesError
from hf_triton.text_generation.memory.layer_shapes import LayerShape, StateShape
from hf_triton.text_generation.memory.paged_cache import PagedCache
from hf_triton.text_generation.memory.pages import PagedSize

CPU = torch.device("cpu")
SLOTS, LENGTHS = (2, 0, 3, 1), (1, 1, 13, 5)
IS_NEW = (0, 1, 1, 0)
COPIED = ((0, 0), (0, 0), (5, 5), (2, 4))  # after how many tokens, to which slot
NUM_SLOTS = 6
TOKENS = sum(LENGTHS)
Scan = Callable[[int, torch.Tensor], torch.Tensor]  # a token, the state that it changes -> its row


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    torch.manual_seed(0)
    dtype: torch.dtype = request.param
    return dtype


def functions(kind: str, size: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, torch.Tensor]:
    """The functions on a step, expecting a state; and that state, of random numbers."""
    shape = StateShape(kind, 0, size, dtype)
    layer = LayerShape(0, 0, 0, dtype, CPU, states=(shape,))
    cache = PagedCache([layer], PagedSize(1, 8, NUM_SLOTS - 1, 0))
    cache.states[0][0].normal_()
    made = CompiledFunctions(cache)
    made.runs = runs()
    made.expect(kind, 0, 0)
    return made, cache.states[0][0]


def runs() -> torch.Tensor:
    ends = torch.tensor(LENGTHS).cumsum(0)
    firsts = ends - torch.tensor(LENGTHS)
    columns = [firsts, torch.tensor(LENGTHS), torch.tensor(SLOTS), torch.tensor(IS_NEW)]
    return torch.cat([torch.stack(columns, dim=1), torch.tensor(COPIED)], dim=1)


def expected(states: torch.Tensor, scan: Scan) -> tuple[torch.Tensor, torch.Tensor]:
    """Every token's row and the states (slots, ...) afterwards, token by token in float64."""
    states, rows, token = states.double().clone(), [], 0
    for slot, length, is_new, copied in zip(SLOTS, LENGTHS, IS_NEW, COPIED, strict=True):
        state = torch.zeros_like(states[slot]) if is_new else states[slot]
        for done in range(1, length + 1):
            rows.append(scan(token, state))
            token += 1
            if done == copied[0]:
                states[copied[1]] = state
        states[slot] = state
    return torch.stack(rows), states


def assert_close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """To the last bits of its type, of the largest number."""
    eps = 1e-5 if got.dtype == torch.float32 else 2e-2
    assert (got.double() - wanted).abs().max() < eps * wanted.abs().max()


@pytest.mark.parametrize("of_channels", [False, True], ids=["one gate", "a gate for each channel"])
def test_a_gated_delta_rule_goes_on(of_channels: bool, dtype: torch.dtype) -> None:
    key_heads, heads, size, dim = 2, 4, 10, 37
    made, stored = functions("recurrent", (heads, size, dim), torch.float32)
    q, k = (torch.randn(TOKENS, key_heads, size).to(dtype) for _ in range(2))
    v = torch.randn(TOKENS, heads, dim).to(dtype)
    g = -torch.rand(TOKENS, heads, *([size] if of_channels else []))
    beta = torch.rand(TOKENS, heads).to(dtype)

    def unit(x: torch.Tensor) -> torch.Tensor:
        wide = x.double().repeat_interleave(heads // key_heads, dim=0)
        return wide * (wide.pow(2).sum(-1, keepdim=True) + 1e-6).rsqrt()

    def scan(token: int, state: torch.Tensor) -> torch.Tensor:
        key, query = unit(k[token]), unit(q[token]) * size**-0.5
        state *= g[token].double().view(heads, -1, 1).exp()
        error = v[token].double() - torch.einsum("hkv,hk->hv", state, key)
        state += torch.einsum("hk,hv->hkv", key, error * beta[token].double().unsqueeze(-1))
        return torch.einsum("hkv,hk->hv", state, query)

    rows, states = expected(stored.view(NUM_SLOTS, heads, dim, size).transpose(2, 3), scan)
    given = [part.unsqueeze(0) for part in (q, k, v, g, beta)]
    out, _ = made.torch_chunk_gated_delta_rule(*given, use_qk_l2norm_in_kernel=True)
    assert_close(out[0], rows)
    assert_close(stored.view(NUM_SLOTS, heads, dim, size).transpose(2, 3), states)


def test_a_state_that_is_updated_elsewhere_is_found() -> None:
    made, _ = functions("conv", (6, 4), torch.float32)
    x, weight = torch.zeros(1, 6, TOKENS), torch.zeros(6, 4)
    with pytest.raises(UnsupportedStatesError, match="1 states are updated elsewhere"):
        made.end()
    made.causal_conv1d_fn(x, weight)
    made.end()
    with pytest.raises(UnsupportedStatesError, match="twice, or out of turn"):
        made.causal_conv1d_fn(x, weight)
