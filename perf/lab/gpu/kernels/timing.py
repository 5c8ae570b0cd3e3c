"""How long kernels take, beside what a copy reaches of the memory's bandwidth; and decodes by other
tiles, warps, stages and splits than launching.py has.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from torch.nn import functional as F

from hf_triton.text_generation.forward.gpu import launching, ops
from hf_triton.text_generation.forward.gpu.launching import Tile
from perf.lab.gpu.kernels.checks import BF16, DRAWN, LAYERS, drawn
from perf.lab.gpu.kernels.steps import Layer, Step, error
from perf.lab.gpu.told import Told

_DECODES = ((1, 512), (1, 8000), (8, 512), (8, 4000), (64, 370), (64, 2000), (256, 370))
_PRODUCTS = ((6144, 4096), (28672, 4096), (4096, 14336), (128256, 4096))  # out, in: of 8 B
_TILES = (
    *(Tile(16, 64, 4, 5), Tile(16, 64, 4, 6), Tile(16, 32, 4, 3), Tile(16, 32, 4, 5)),
    *(Tile(16, 128, 4, 5), Tile(16, 128, 8, 5), Tile(16, 64, 8, 5), Tile(16, 64, 2, 5)),
)
"""On sm_90, 3 and 4 stages hold one tile of keys and one of values in shared memory, 5 hold two."""
_COPIES = 3  # of what is read, so that caches do not hold it


@torch.inference_mode()
def measure(told: Told, what: str) -> None:
    """``time`` or ``sweep``."""
    {"time": _time, "sweep": _sweep}[what](told)


def _time(told: Told) -> None:
    """A row for each shape of attention, of products of few rows, of draws."""
    device, source = told.device, torch.ones(2**29, dtype=BF16, device=told.device)
    target = torch.empty_like(source)
    ceiling = 2 * source.nbytes / event_s(lambda: target.copy_(source))
    told.row("a copy", {"tb_per_s": ceiling / 1e12})
    for name, (seqs, length) in itertools.product(list(LAYERS)[:3], _DECODES):
        layer, steps = LAYERS[name], _decodes(LAYERS[name], seqs, length, device)
        taken = event_s(lambda steps=steps: [one.attend() for one in steps]) / _COPIES  # type: ignore[misc]
        share = seqs * length * layer.kv_heads * layer.key_dim * 4 / taken / ceiling
        row = {"us": taken * 1e6, "of_a_copy's_bandwidth_share": share}
        told.row(f"attention {name}: {seqs} x {length}", row)
    for seqs, count in ((1, 2048), (4, 512)):
        step = Step((count,) * seqs, (count,) * seqs, LAYERS["llama-3-8b"], BF16, device)
        taken = event_s(step.attend)
        flops = seqs * 2 * count * count * 32 * 128  # half of it is masked
        row = {"us": taken * 1e6, "tflop_per_s": flops / taken / 1e12}
        told.row(f"attention of prompts: {seqs} x {count}", row)
    for count, (out, inner) in itertools.product((1, 8, 64, 256), _PRODUCTS):
        taken = _product_s(count, out, inner, device)
        row = {"us": taken * 1e6, "of_a_copy's_bandwidth_share": out * inner * 2 / taken / ceiling}
        told.row(f"product {count} x {inner} -> {out}", row)
    for count, way in itertools.product((1, 256), DRAWN):
        one, values, logits = drawn(device, [DRAWN[way]] * count, 128_256, BF16)
        ids = torch.zeros(count, dtype=torch.int64, device=device)
        by_kernel, by_operators = (
            partial(one.draw_by_kernel, logits, values, ids),
            partial(one.draw, logits, values),
        )
        row = {"us": event_s(by_kernel) * 1e6, "by_operators_us": event_s(by_operators) * 1e6}
        told.row(f"draw {way} of {count}", row)


def _product_s(rows: int, out: int, inner: int, device: torch.device) -> float:
    weights = [torch.randn(out, inner, device=device).to(BF16) for _ in range(_COPIES)]
    x = torch.randn(rows, inner, device=device).to(BF16)
    return event_s(lambda: [F.linear(x, weight) for weight in weights]) / _COPIES


def _decodes(layer: Layer, seqs: int, length: int, device: torch.device) -> list[Step]:
    return [
        Step((1,) * seqs, (length,) * seqs, layer, BF16, device, seed=at) for at in range(_COPIES)
    ]


def _sweep(told: Told) -> None:
    """The best of all tiles and splits for some decodes, beside launching.py's own."""
    own, num_splits = launching.DECODE_TILES, launching.num_splits
    shapes = ((1, 8000), (8, 4000), (64, 2000), (256, 370))
    for name, (seqs, length) in itertools.product(("llama-3-8b", "llama-3-1b"), shapes):
        steps = _decodes(LAYERS[name], seqs, length, told.device)
        expected = steps[0].attend().float()
        found: list[tuple[float, str]] = []
        for tile, times in itertools.product((own[0].tile, *_TILES), (1, 2, 4)):
            how = f"{tile.block_n} x {tile.num_warps} warps x {tile.num_stages} stages"
            more = partial(lambda times, *of: min(64, num_splits(*of) * times), times)
            tiles = tuple(one._replace(tile=tile) for one in own)
            with (
                patch.object(launching, "DECODE_TILES", tiles),
                patch.object(ops, "num_splits", more),
            ):
                launching.attention_launch.cache_clear()
                found.append(_tried(steps, expected, f"{how}, splits x {times}"))
            launching.attention_launch.cache_clear()
        best = ", ".join(f"{how}: {taken * 1e6:.1f} us" for taken, how in sorted(found)[:4])
        told.row(f"sweep {name}: {seqs} x {length}", {"ours_us": found[0][0] * 1e6, "best": best})


def _tried(steps: list[Step], expected: torch.Tensor, how: str) -> tuple[float, str]:
    try:
        if (off := error(steps[0].attend(), expected)) > 1e-2:
            return math.inf, f"{how}: off by {off:.2g}"
        return event_s(lambda: [one.attend() for one in steps], 7) / len(steps), how
    except Exception as failure:  # noqa: BLE001
        # Whatever the compiler or the card says to a tile.
        return math.inf, f"{how}: {type(failure).__name__}"


def event_s(run: Callable[[], object], repeats: int = 15) -> float:
    """The median seconds of the device, of replays of a graph."""
    for _ in range(3):
        run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    found: list[float] = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(found)
