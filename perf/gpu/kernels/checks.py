"""Every kernel of ours against float64 on the device itself, with NaN around what it may read; the
same inside a CUDA graph, and twice for equal bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from hf_triton.text_generation.sampling.columns import Columns, DeviceColumns, to_device
from hf_triton.text_generation.sampling.random_sampling import Draws
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from perf.gpu.kernels.steps import OPS, PLAIN, Layer, Rule, Step, error

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
MOST = {F32: 5e-6, F16: 2e-3, BF16: 1.2e-2}  # of ``error``
LAYERS = {
    "llama-3-8b": Layer(32, 8, 128, 128),
    "llama-3-1b": Layer(32, 8, 64, 64),
    "llama-2-7b": Layer(32, 32, 128, 128),
    "smollm": Layer(9, 3, 64, 64),
    "phi-2": Layer(32, 32, 80, 80),
    "gemma-2": Layer(8, 4, 256, 256),
    "deepseek": Layer(16, 16, 192, 128),
    "falcon-7b": Layer(71, 1, 64, 64),
}
SMALL = Layer(4, 2, 64, 64)
# Counts of tokens, and the lengths that they attend to.
MIXED = ((1, 1, 1, 5, 40, 1, 130), (33, 1, 130, 5, 100, 700, 257))
STEPS = {
    "long": ((1, 1), (5000, 17)),
    "many": ((1,) * 70, tuple(1 + 37 * at % 900 for at in range(70))),
    "prompt": ((300,), (300,)),
}
TINY = ((1, 1, 5, 20), (33, 1, 5, 50))
SHORTER = (17, 16, 33, 21)
RULES = {
    "window": Rule(window=24),
    "window of 1": Rule(window=1),
    "softcap": Rule(softcap=30.0),
    "sinks": Rule(window=128, has_sinks=True),
}
DRAWN: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.8},
    "top_k": {"temperature": 0.8, "top_k": 40},
    "top_p": {"temperature": 0.9, "top_p": 0.95},
    "all": {"temperature": 1.1, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
}
Check = Callable[[], tuple[float, float]]
"""What was found and the most that is allowed."""


def short(dtype: torch.dtype) -> str:
    """``float32``."""
    return str(dtype).removeprefix("torch.")


def attention(device: torch.device, *, small: bool) -> Iterator[tuple[str, Check]]:
    """Shapes of known models, alignments, rules."""
    if small:
        for dtype in (F32, F16, BF16):
            yield f"small {short(dtype)}", partial(_attend, device, TINY, SMALL, dtype)
        rule = Rule(window=9, has_sinks=True)
        yield "small window float32", partial(_attend, device, TINY, SMALL, F32, rule)
        return
    for (name, layer), dtype in itertools.product(LAYERS.items(), (BF16, F16, F32)):
        pads = range(4) if name == "llama-3-8b" else range(1)  # alignments of the step's numbers
        check = partial(_attend, device, MIXED, layer, dtype, pads=pads)
        yield f"{name} mixed {short(dtype)}", check
    layer = LAYERS["llama-3-8b"]
    for dtype, (what, step) in itertools.product((BF16, F32), STEPS.items()):
        yield f"llama-3-8b {what} {short(dtype)}", partial(_attend, device, step, layer, dtype)
    for (name, rule), step in itertools.product(RULES.items(), (MIXED, STEPS["long"])):
        where = f"{len(step[0])} sequences bfloat16"
        yield f"llama-3-8b {name} {where}", partial(_attend, device, step, layer, BF16, rule)
    rule = Rule(window=64, softcap=50.0)
    yield "gemma-2 all bfloat16", partial(_attend, device, MIXED, LAYERS["gemma-2"], BF16, rule)


def _attend(
    device: torch.device,
    shape: tuple[tuple[int, ...], tuple[int, ...]],
    layer: Layer,
    dtype: torch.dtype,
    rule: Rule = PLAIN,
    pads: range = range(1),
) -> tuple[float, float]:
    worst = 0.0
    for num_pads in pads:
        step = Step(*shape, layer, dtype, device, num_pads)
        got, again = (step.attend(rule)[: sum(shape[0])] for _ in range(2))
        worst = max(worst, error(got, step.expected(rule)))
        if not torch.equal(got, again):
            raise ValueError("twice the same call, not the same bits: a race")
    return worst, MOST[dtype]


def rows(device: torch.device, *, small: bool) -> Iterator[tuple[str, Check]]:
    """What lies between the products of a layer."""
    dtypes, tokens = ((F32,), (3,)) if small else ((BF16, F16, F32), (1, 7, 300))
    for dtype, size in itertools.product(dtypes, (96,) if small else (64, 576, 2048, 4096, 8192)):
        check = partial(_norm, device, dtype, size, tokens)
        yield f"add_rms_norm {size} {short(dtype)}", check
    for dtype, size in itertools.product(dtypes, (100,) if small else (96, 5504, 14336)):
        yield f"silu_mul {size} {short(dtype)}", partial(_silu, device, dtype, size, max(tokens))
    # Query heads, key heads, numbers of a head, of those that turn.
    shapes = [(32, 8, 128, 128), (32, 8, 64, 64), (9, 3, 64, 64), (32, 32, 80, 32)]
    shapes += [(8, 4, 256, 256), (16, 2, 128, 64), (3, 3, 80, 20)]
    shapes = [(4, 2, 64, 64)] if small else shapes
    for dtype, shape, has_norms in itertools.product(dtypes, shapes, (False, True)):
        check = partial(_rotate, device, dtype, shape, tokens, has_norms=has_norms)
        yield f"rotate_and_store {shape} {short(dtype)}{' norms' * has_norms}", check


def _norm(
    device: torch.device, dtype: torch.dtype, size: int, tokens: tuple[int, ...]
) -> tuple[float, float]:
    worst = 0.0
    for count in tokens:
        hidden, delta = torch.randn(2, count, size, device=device).to(dtype)
        weight = torch.randn(size, device=device).to(dtype)
        total = (hidden.float() + delta.float()).to(dtype)
        got = OPS.add_rms_norm(hidden, delta, weight, 1e-5)
        want = F.rms_norm(total.double(), (size,), weight.double(), 1e-5)
        again = OPS.add_rms_norm(hidden, None, weight, 1e-5)
        worst = max(worst, error(got, want), error(hidden, total), error(again, want))
    return worst, MOST[dtype]


def _silu(device: torch.device, dtype: torch.dtype, size: int, count: int) -> tuple[float, float]:
    x = torch.randn(count, 2 * size, device=device).to(dtype) * 3
    gate, up = x.double().chunk(2, 1)
    return error(OPS.silu_mul(x), F.silu(gate) * up), MOST[dtype]


def _rotate(
    device: torch.device,
    dtype: torch.dtype,
    shape: tuple[int, int, int, int],
    tokens: tuple[int, ...],
    *,
    has_norms: bool,
) -> tuple[float, float]:
    heads, kv_heads, dim, rotary = shape
    worst = 0.0
    for count in tokens:
        qkv = torch.randn(count, (heads + 2 * kv_heads) * dim, device=device).to(dtype)
        angles = torch.randn(500, rotary // 2, device=device).repeat(1, 2)
        cos, sin = angles.cos().to(dtype).contiguous(), angles.sin().to(dtype).contiguous()
        norms = torch.cat([torch.randn(2, dim), torch.ones(1, dim)]).to(device, dtype)
        at = torch.randperm(1000, device=device)[:count].int()
        positions = torch.randint(0, 500, (count,), device=device).int()
        keys, values = torch.full((2, 63, 16, kv_heads, dim), torch.nan, device=device).to(dtype)
        q, k, v = qkv.double().unflatten(1, (-1, dim)).split([heads, kv_heads, kv_heads], 1)
        if has_norms:
            q, k = (
                F.rms_norm(x, (dim,), weight.double(), 1e-5)
                for x, weight in zip((q, k), norms[:2], strict=True)
            )
        turn = cos[positions.long()].double(), sin[positions.long()].double()
        given = norms if has_norms else None
        OPS.rotate_and_store(qkv, keys, values, at, positions, cos, sin, given, 1e-5)
        got = qkv[:, : heads * dim].unflatten(1, (heads, dim))
        worst = max(worst, error(got, _turned(q, *turn)))
        for stored, want in ((keys, _turned(k, *turn)), (values, v)):
            flat = stored.flatten(0, 1)
            worst = max(worst, error(flat[at.long()], want))
            others = torch.ones(len(flat), dtype=torch.bool, device=device)
            others[at.long()] = False
            if not bool(flat[others].isnan().all()):
                raise ValueError("rows that are others' were written")
    return worst, MOST[dtype]


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    size = cos.shape[1]
    head, rest = x[..., :size], x[..., size:]
    half = torch.cat([-head[..., size // 2 :], head[..., : size // 2]], -1)
    return torch.cat([head * cos[:, None] + half * sin[:, None], rest], -1)


def drawn(
    device: torch.device, way: str, count: int, vocab_size: int, dtype: torch.dtype
) -> tuple[Draws, DeviceColumns, torch.Tensor]:
    """What draws tokens of so many rows, its numbers on the device, and logits."""
    params = SamplingParams(1, **DRAWN[way])
    columns = Columns()
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(1)).tolist()
    numbers = [(row, params, number) for row, number in enumerate(uniform)]
    draws = Draws.of(numbers, vocab_size, columns)
    values = DeviceColumns(to_device(columns.array(), device))
    return draws, values, torch.randn(count, vocab_size, device=device).mul_(3).to(dtype)


def draws(device: torch.device, *, small: bool) -> Iterator[tuple[str, Check]]:
    """The share of drawn tokens that are not those of torch's operators."""
    dtypes, sizes = ((F32,), (1000,)) if small else ((BF16, F32), (32_000, 128_256))

    def check(way: str, dtype: torch.dtype, vocab_size: int) -> tuple[float, float]:
        count = 3 if small else 256
        one, values, logits = drawn(device, way, count, vocab_size, dtype)
        ids = torch.full((count,), -1, dtype=torch.int64, device=device)
        one.draw_by_kernel(logits, values, ids)
        return float((ids != one.draw(logits, values)).float().mean()), 0.01

    for way, dtype, vocab_size in itertools.product(DRAWN, dtypes, sizes):
        yield f"draw {way} of {vocab_size} {short(dtype)}", partial(check, way, dtype, vocab_size)


def graphs(device: torch.device, *, small: bool) -> Iterator[tuple[str, Check]]:
    """A captured call, replayed with other lengths and pages in its buffers."""
    for dtype in (F32,) if small else (BF16, F32):
        layer = SMALL if small else LAYERS["llama-3-8b"]
        yield f"a replayed graph {short(dtype)}", partial(_replay, device, layer, dtype)


def _replay(device: torch.device, layer: Layer, dtype: torch.dtype) -> tuple[float, float]:
    step, other = (
        Step(TINY[0], lengths, layer, dtype, device, seed=seed)
        for seed, lengths in enumerate((TINY[1], SHORTER))
    )
    replay = captured(step.attend, device)
    replay()
    for name in ("starts", "lengths", "first_page", "pages", "keys", "values", "q"):
        there = getattr(other, name)
        getattr(step, name)[: len(there)].copy_(there)
    return error(replay().clone(), other.expected()), MOST[dtype]


def captured(run: Callable[[], torch.Tensor], device: torch.device) -> Callable[[], torch.Tensor]:
    """Its replay; on a CPU itself."""
    if device.type == "cpu":
        return run
    from hf_triton.runtime.devices.cuda_capture import capture_on_stream

    return capture_on_stream(device)(run)


GROUPS = {"attention": attention, "rows": rows, "draws": draws, "graphs": graphs}
