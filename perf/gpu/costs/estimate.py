"""The section that models what it can't measure: tokens/s of an H100 by counted work, of an engine
with slots as it was and of the one with pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from hf_runtime.errors import LoadError

from perf.gpu.costs.assumed import (
    A10,
    COPY_S,
    CUDNN_PLAN_S,
    H100,
    LLAMA_2_7B,
    LLAMA_31_8B,
    LLAMA_135M,
    MODULES,
    PAGES,
    PRODUCT_SHARE,
    SLOTS,
    SMALL_KERNEL_S,
    Card,
    Decoder,
    Design,
)
from perf.gpu.costs.simulated import MEAN_TOKENS, Work, num_fitting, room, steps
from perf.gpu.results import Context, Row

DECODERS, CLIENTS = (LLAMA_2_7B, LLAMA_135M, LLAMA_31_8B), (1, 8, 64, 256)
_STEPS = 1500


@dataclass(frozen=True)
class Estimate:
    """Sums over steps."""

    num_steps: int
    num_eager: int
    num_tokens: int
    read: int
    needed: int
    taken_s: float
    plans_s: float  # beside that, as long as shapes of attention are new
    least_s: float  # weights and needed keys at the bandwidth


def measure(context: Context) -> None:
    """What fits, then tokens/s; all of it in whole numbers, for it is counted and computed."""
    for decoder, card in product(DECODERS, (H100, A10)):
        row: Row = {"model": decoder.name, "on": card.name}
        row |= {design.name: _fitting(decoder, card, design) for design in (SLOTS, PAGES)}
        context.emit(f"sequences of {MEAN_TOKENS} tokens that fit", row)
    for decoder, clients, design in product(DECODERS, CLIENTS, (SLOTS, MODULES, PAGES)):
        found = estimate(decoder, H100, design, steps(decoder, H100, design, clients, _STEPS))
        row = {"model": decoder.name, "clients": clients, "design": design.name, **row_of(found)}
        context.emit("modelled on an H100, not measured", row)


def row_of(found: Estimate) -> Row:
    """In words and whole numbers."""
    return {
        "running": round(found.num_tokens / found.num_steps),
        "eager_steps": f"{found.num_eager / found.num_steps:.0%}",
        "keys_read_to_needed": f"{found.read / found.needed:.2f}",
        "tokens_per_s": round(found.num_tokens / found.taken_s),
        "while_shapes_are_new": round(found.num_tokens / (found.taken_s + found.plans_s)),
        "same_batch_at_the_bandwidth": round(found.num_tokens / found.least_s),
    }


def estimate(decoder: Decoder, card: Card, design: Design, done: Iterable[Work]) -> Estimate:
    """The sums of steps that were simulated."""
    works = list(done)
    least = (
        (decoder.read_bytes + work.needed * decoder.bytes_per_token) / card.bytes_per_s
        for work in works
    )
    return Estimate(
        num_steps=len(works),
        num_eager=sum(not work.is_replayed for work in works),
        num_tokens=sum(work.num_sampled for work in works),
        read=sum(work.read for work in works),
        needed=sum(work.needed for work in works),
        taken_s=sum(seconds(work, decoder, card, design) for work in works),
        plans_s=sum(work.num_new_shapes for work in works) * CUDNN_PLAN_S * design.has_plans,
        least_s=sum(least),
    )


def seconds(work: Work, decoder: Decoder, card: Card, design: Design) -> float:
    """Of one step: the device's time and the host's, one after the other or the longer of both."""
    layers, per_token = decoder.num_layers, decoder.bytes_per_token
    num_products = layers * design.products_a_layer
    products = max(
        decoder.read_bytes / (PRODUCT_SHARE * card.bytes_per_s),
        work.num_tokens * decoder.flop_per_token / card.flop_per_s,
        num_products * SMALL_KERNEL_S,
    )
    attention = work.read * per_token / (design.attention_share * card.bytes_per_s)
    num_others = layers * design.others_a_layer + design.others_a_step
    device = products + attention + num_others * SMALL_KERNEL_S
    host = design.host_s + design.host_s_per_sequence * work.num_sampled
    if not work.is_replayed:
        launching = (num_products + num_others) * design.launch_s
        launching += design.prompt_s * max(0, work.num_chunks - 1)
        device = max(device, launching)
    copies = sum(work.copied) * per_token * 2 / card.bytes_per_s
    copies += len(work.copied) * 2 * layers * COPY_S
    return copies + (max(device, host) if design.is_one_ahead else device + host)


def _fitting(decoder: Decoder, card: Card, design: Design) -> int:
    try:
        return num_fitting(room(decoder, card, design))
    except LoadError:
        return 0
