"""Every kernel of ours against float64 on the device itself, with NaN around what it may read; the
same inside a CUDA graph, and twice for equal bits.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from hf_triton.text_generation.sampling.columns import Columns, DeviceColumns, to_device
from hf_triton.text_generation.sampling.random_sampling import Draws
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from perf.lab.gpu.kernels.steps import OPS, PLAIN, Layer, Rule, Step, error
from perf.lab.gpu.told import Told, short

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
SMALL_LAYERS = {
    "groups of 2": Layer(4, 2, 64, 64),
    "groups of 1": Layer(2, 2, 64, 64),
    "groups of 3": Layer(6, 2, 64, 64),
    "one key head": Layer(8, 1, 80, 80),
    "wide keys": Layer(2, 2, 192, 128),
    "tiny": Layer(4, 2, 8, 8),
}
# Counts of tokens, and the lengths that they attend to.
STEPS = {
    "mixed": ((1, 1, 1, 5, 40, 1, 130), (33, 1, 130, 5, 100, 700, 257)),
    "long": ((1, 1), (5000, 17)),
    "many": ((1,) * 70, tuple(1 + 37 * at % 900 for at in range(70))),
    "prompt": ((300,), (300,)),
}
SMALL_STEPS = {
    "mixed": ((1, 1, 5, 20), (33, 1, 5, 50)),
    "long": ((1, 1), (300, 17)),
    "prompt": ((70,), (70,)),
}
_EPS = 0.1  # so large that it shows
SHORTER = (17, 16, 33, 21)
RULES = {
    "window": Rule(window=24),
    "window of 1": Rule(window=1),
    "softcap": Rule(softcap=2.0),
    "sinks": Rule(window=9, has_sinks=True),
    "all": Rule(window=20, softcap=2.0, has_sinks=True),
}
DRAWN: dict[str, dict[str, Any]] = {
    "temperature": {},
    "top_k": {"top_k": 40},
    "top_p": {"top_p": 0.95},
    "all": {"top_k": 50, "top_p": 0.9, "min_p": 0.02},
}
_EXTREME: tuple[dict[str, Any], ...] = (
    *({"top_k": 2}, {"top_k": 4000}, {"top_p": 1e-6}, {"top_p": 0.999}, {"min_p": 1.0}),
    *({"min_p": 0.02}, {"top_k": 50, "top_p": 0.4}, {"top_k": 7, "top_p": 0.95, "min_p": 0.1}),
)
WAYS = [
    {"temperature": temperature, **way}
    for temperature in (0.8, 1e-6, 2.5, 1e30)
    for way in (*DRAWN.values(), *_EXTREME)
]
Check = Callable[[], tuple[float, float]]
"""What was found and the most that is allowed."""
Found = Iterator[tuple[str, Check]]


@torch.inference_mode()
def measure(told: Told, group: str, pattern: str = "", size: str = "") -> None:
    """A row for each case whose name ``pattern`` is found in; on a CPU of the small ones."""
    for name, check in GROUPS[group](told.device, small=told.is_cpu or size == "small"):
        if re.search(pattern, name):
            with told.case(f"{group} {name}") as row:
                row["difference"], row["allowed"] = check()
                row["agrees"] = row["difference"] <= row["allowed"]


def attention(device: torch.device, *, small: bool) -> Found:
    """Shapes of known models, alignments, rules."""
    layers, steps = (SMALL_LAYERS, SMALL_STEPS) if small else (LAYERS, STEPS)
    first = next(iter(layers))

    def case(what: str, name: str, dtype: torch.dtype, step: str, **more: Any) -> tuple[str, Check]:
        check = partial(_attend, device, steps[step], layers[name], dtype, **more)
        return f"{name} {what} {step} {short(dtype)}", check

    for name, dtype in itertools.product(layers, (BF16, F16, F32)):
        if dtype == F32 or name == first or not small:
            # Alignments of the step's numbers.
            yield case(
                "plain", name, dtype, "mixed", pads=range(1 if small or name != first else 4)
            )
    for dtype, step in itertools.product((F32,) if small else (BF16, F32), list(steps)[1:]):
        yield case("plain", first, dtype, step)
    for (what, rule), step in itertools.product(RULES.items(), steps if not small else ("mixed",)):
        yield case(what, first, F32 if small else BF16, step, rule=rule)
    if not small:
        yield case("all", "gemma-2", BF16, "mixed", rule=RULES["all"])


def _attend(
    device: torch.device,
    shape: tuple[tuple[int, ...], tuple[int, ...]],
    layer: Layer,
    dtype: torch.dtype,
    rule: Rule = PLAIN,
    pads: Sequence[int] = (0,),
) -> tuple[float, float]:
    worst = 0.0
    for num_pads in pads:
        step = Step(*shape, layer, dtype, device, num_pads)
        got = step.attend(rule)[: sum(shape[0])]
        worst = max(worst, error(got, step.expected(rule)))
        if got.is_cuda and not torch.equal(got, step.attend(rule)[: sum(shape[0])]):
            raise ValueError("twice the same call, not the same bits: a race")
    return worst, MOST[dtype]


def rows(device: torch.device, *, small: bool) -> Found:
    """What lies between the products of a layer."""
    tokens = (5,) if small else (1, 7, 300)
    # Query heads, key heads, numbers of a head, of those that turn.
    shapes = [(4, 2, 64, 64), (6, 2, 80, 32), (8, 1, 128, 128), (3, 3, 80, 20)]
    if not small:
        shapes += [(32, 8, 128, 128), (32, 8, 64, 64), (9, 3, 64, 64), (32, 32, 80, 32)]
        shapes += [(8, 4, 256, 256), (16, 2, 128, 64)]
    for dtype in (BF16, F16, F32):
        for size in (96,) if small else (64, 576, 2048, 4096, 8192):
            yield f"add_rms_norm {size} {short(dtype)}", partial(_norm, device, dtype, size, tokens)
        for size in (1100,) if small else (96, 5504, 14336):
            yield f"silu_mul {size} {short(dtype)}", partial(_silu, device, dtype, size, tokens[-1])
        for shape, norms in itertools.product(shapes, (False, True)):
            check = partial(_rotate, device, dtype, shape, tokens, has_norms=norms)
            yield f"rotate_and_store {shape}{' norms' * norms} {short(dtype)}", check


def _norm(
    device: torch.device, dtype: torch.dtype, size: int, tokens: tuple[int, ...]
) -> tuple[float, float]:
    worst = 0.0
    for count in tokens:
        hidden, delta = torch.randn(2, count, size, device=device).to(dtype)
        weight = torch.randn(size, device=device).to(dtype)
        total = (hidden.float() + delta.float()).to(dtype)
        got = OPS.add_rms_norm(hidden, delta, weight, _EPS)
        want = F.rms_norm(total.double(), (size,), weight.double(), _EPS)
        again = OPS.add_rms_norm(hidden, None, weight, _EPS)
        worst = max(worst, error(got, want), error(hidden, total), error(again, want))
    return worst, MOST[dtype]


def _silu(device: torch.device, dtype: torch.dtype, size: int, count: int) -> tuple[float, float]:
    x = torch.randn(count, 2 * size, device=device).to(dtype) * 3
    x[0, 0] = -200  # whose exponential is infinite
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
                F.rms_norm(x, (dim,), weight.double(), _EPS)
                for x, weight in zip((q, k), norms[:2], strict=True)
            )
        turn = cos[positions.long()].double(), sin[positions.long()].double()
        given = norms if has_norms else None
        OPS.rotate_and_store(qkv, keys, values, at, positions, cos, sin, given, _EPS)
        worst = max(
            worst, error(qkv[:, : heads * dim].unflatten(1, (heads, dim)), _turned(q, *turn))
        )
        for stored, want in ((keys, _turned(k, *turn)), (values, v)):
            flat = stored.flatten(0, 1)
            worst = max(worst, error(flat[at.long()], want))
            if int(flat.isfinite().flatten(1).any(1).sum()) != count:
                raise ValueError("rows that are others' were written")
    return worst, MOST[dtype]


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    size = cos.shape[1]
    head, rest = x[..., :size], x[..., size:]
    half = torch.cat([-head[..., size // 2 :], head[..., : size // 2]], -1)
    return torch.cat([head * cos[:, None] + half * sin[:, None], rest], -1)


def drawn(
    device: torch.device, ways: Sequence[dict[str, Any]], vocab_size: int, dtype: torch.dtype
) -> tuple[Draws, DeviceColumns, torch.Tensor]:
    """What draws a token of a row for each way, its numbers on the device, and logits."""
    columns, uniform = Columns(), torch.rand(len(ways)).tolist()
    params = [SamplingParams(1, **{"temperature": 0.8, **way}) for way in ways]
    draws = Draws.of([*zip(itertools.count(), params, uniform, strict=False)], vocab_size, columns)
    values = DeviceColumns(to_device(columns.array(), device))
    return draws, values, torch.randn(len(ways), vocab_size, device=device).mul_(3).to(dtype)


def draws(device: torch.device, *, small: bool) -> Found:
    """The share of drawn tokens that are not those of torch's operators."""
    sizes = (128,) if small else (128, 32_000, 128_256)
    for dtype, vocab_size in itertools.product((BF16, F32), sizes):
        yield f"of {vocab_size} {short(dtype)}", partial(_draw, device, dtype, vocab_size)


def _draw(device: torch.device, dtype: torch.dtype, vocab_size: int) -> tuple[float, float]:
    """Of every way; some logits are forbidden, and some equal. What is no number, or nothing but
    forbidden, gets a token all the same; a row that nothing is drawn for is left alone.
    """
    one, values, logits = drawn(device, WAYS, vocab_size, dtype)
    logits[::5, 2 : vocab_size // 2] = -torch.inf
    logits[1::2] = logits[1::2].round()
    logits[0], logits[1] = -torch.inf, torch.nan
    ids = torch.full((len(WAYS) + 1,), -1, dtype=torch.int64, device=device)
    one.draw_by_kernel(torch.cat([logits, logits[:1]]), values, ids)
    if not 0 <= int(ids[:2].min()) <= int(ids[:2].max()) < vocab_size or int(ids[-1]) != -1:
        raise ValueError(f"the first two and the last are {ids[[0, 1, -1]].tolist()}")
    return float((ids[2:-1] != one.draw(logits, values)[2:]).float().mean()), 0.01


def graphs(device: torch.device, *, small: bool) -> Found:
    """A captured call, replayed with other lengths and pages in its buffers."""
    layer = next(iter((SMALL_LAYERS if small else LAYERS).values()))
    for dtype in (BF16, F32):
        yield f"a replayed graph {short(dtype)}", partial(_replay, device, layer, dtype)


def _replay(device: torch.device, layer: Layer, dtype: torch.dtype) -> tuple[float, float]:
    counts, longer = SMALL_STEPS["mixed"]
    step, other = (
        Step(counts, lengths, layer, dtype, device, seed=seed)
        for seed, lengths in enumerate((longer, SHORTER))
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
