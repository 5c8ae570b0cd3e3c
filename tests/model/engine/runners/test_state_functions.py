"""The compiled convolution and recurrences against plain ones in float64, over a row of several
sequences: some that begin, some that go on, of one token and of many, some of whose states are
copied on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from hf_triton.text_generation.forward.states.row import UnsupportedStatesError
from hf_triton.text_generation.forward.states.runner import Runs, StateFunctions
from hf_triton.text_generation.memory.kv_cache import CacheSize, KVCache
from hf_triton.text_generation.memory.layer_shapes import LayerShape, StateShape

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
    cache = KVCache([layer], CacheSize(NUM_SLOTS, 8, 0))
    cache.states[0][0].normal_()
    made = StateFunctions(cache)
    made.begin(runs())
    made.expect(kind, 0, 0)
    return made, cache.states[0][0]


def runs() -> Runs:
    ends = torch.tensor(LENGTHS).cumsum(0)
    firsts = ends - torch.tensor(LENGTHS)
    columns = [firsts, torch.tensor(LENGTHS), torch.tensor(SLOTS), torch.tensor(IS_NEW)]
    return Runs(torch.cat([torch.stack(columns, dim=1), torch.tensor(COPIED)], dim=1))


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


@pytest.mark.parametrize("activation", ["silu", None])
@pytest.mark.parametrize("size", [4, 3])
def test_a_convolution_goes_on(size: int, activation: str | None, dtype: torch.dtype) -> None:
    channels = 300  # more than a block
    made, stored = functions("conv", (channels, size), dtype)
    x = torch.randn(TOKENS, channels + 7).to(dtype)[:, :channels]
    weight, bias = torch.randn(channels, size).to(dtype), torch.randn(channels).to(dtype)
    before = stored.view(NUM_SLOTS, size, channels).clone()

    def scan(token: int, state: torch.Tensor) -> torch.Tensor:
        state.copy_(torch.cat([state[1:], x[token : token + 1].double()]))
        row = (state * weight.double().t()).sum(0) + bias.double()
        return F.silu(row) if activation else row

    rows, states = expected(before, scan)
    out = made.causal_conv1d_fn(x.t().unsqueeze(0), weight, bias, activation=activation)
    assert_close(out[0].t(), rows)
    assert_close(stored.view(NUM_SLOTS, size, channels), states)


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


def test_mamba_2_goes_on(dtype: torch.dtype) -> None:
    heads, groups, dim, size = 4, 2, 35, 10
    made, stored = functions("recurrent", (heads, dim, size), torch.float32)
    x = torch.randn(TOKENS, heads, dim).to(dtype)
    b, c = (torch.randn(TOKENS, groups, size).to(dtype) for _ in range(2))
    dt, bias = torch.randn(TOKENS, heads).to(dtype), torch.rand(heads)
    decays, skips = -torch.rand(heads), torch.randn(heads)
    steps = F.softplus(dt + bias.to(dtype)).double()

    def scan(token: int, state: torch.Tensor) -> torch.Tensor:
        into, out_of = (
            part[token].double().repeat_interleave(heads // groups, dim=0) for part in (b, c)
        )
        value, step = x[token].double(), steps[token]
        state *= (step * decays.double()).exp().view(-1, 1, 1)
        state += torch.einsum("hp,hn->hpn", value * step.unsqueeze(-1), into)
        return torch.einsum("hpn,hn->hp", state, out_of) + value * skips.double().unsqueeze(-1)

    rows, states = expected(stored, scan)
    given = (x.unsqueeze(0), dt.unsqueeze(0), decays, b.unsqueeze(0), c.unsqueeze(0))
    out, _ = made.mamba2_chunk_scan(*given, D=skips, dt_bias=bias, dt_softplus=True)
    assert out.dtype == torch.float32
    assert_close(out[0], rows)
    assert_close(stored, states)


def test_mamba_1_goes_on(dtype: torch.dtype) -> None:
    channels, size = 260, 6
    made, stored = functions("recurrent", (channels, size), torch.float32)
    x, z, dt = (torch.randn(TOKENS, channels).to(dtype) for _ in range(3))
    b, c = (torch.randn(TOKENS, size).to(dtype) for _ in range(2))
    bias, decays, skips = torch.rand(channels), -torch.rand(channels, size), torch.randn(channels)
    steps = F.softplus(dt + bias.to(dtype)).double()

    def scan(token: int, state: torch.Tensor) -> torch.Tensor:
        step, value = steps[token].unsqueeze(-1), x[token].double()
        state *= (step * decays.double()).exp()
        state += step * value.unsqueeze(-1) * b[token].double()
        row = (state * c[token].double()).sum(-1) + value * skips.double()
        return row * F.silu(z[token].double())

    rows, states = expected(stored, scan)
    columns = [part.t().unsqueeze(0) for part in (x, dt, b, c, z)]
    out, _ = made.mamba_selective_scan(
        columns[0], columns[1], decays, *columns[2:4], D=skips, z=columns[4], delta_bias=bias
    )
    assert_close(out[0].t(), rows)
    assert_close(stored, states)


def test_a_state_that_goes_on_in_another_way_is_found() -> None:
    made, _ = functions("conv", (6, 4), torch.float32)
    x, weight = torch.zeros(1, 6, TOKENS), torch.zeros(6, 4)
    with pytest.raises(UnsupportedStatesError, match="1 states go on in another way"):
        made.end()
    made.causal_conv1d_fn(x, weight)
    made.end()
    with pytest.raises(UnsupportedStatesError, match="twice in a step, or unasked"):
        made.causal_conv1d_fn(x, weight)
