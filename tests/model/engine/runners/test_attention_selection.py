"""Attention over pages is chosen by trial: the order of candidates, and their refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen

from hf_triton.text_generation.forward.paged import attention_selection
from hf_triton.text_generation.forward.paged.attention import Attend, AttentionRule, plain_attention
from hf_triton.text_generation.forward.paged.attention_selection import (
    TOLERANCE,
    AttentionCase,
    difference,
    flash_attention,
    select_attention,
    varlen_attention,
)
from hf_triton.text_generation.memory.pages import PAGE_SIZES
from tests.support.as_on_a_gpu import varlen_attn

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
PLAIN = AttentionCase(4, 2, 64, 64, torch.float32, AttentionRule(0.125), has_sinks=False)
CASES = {
    "plain": PLAIN,
    "no groups": replace(PLAIN, kv_heads=4),
    "window": replace(PLAIN, rule=AttentionRule(0.125, window=4)),
    "window of pages": replace(PLAIN, rule=AttentionRule(0.125, window=280)),
    "softcap": replace(PLAIN, rule=AttentionRule(0.125, softcap=2.0)),
    "sinks": replace(PLAIN, rule=AttentionRule(0.125, window=4), has_sinks=True),
    "bfloat16": replace(PLAIN, dtype=torch.bfloat16, kv_heads=1, key_dim=80, value_dim=80),
}
TAKEN = ("plain", "no groups", "window", "window of pages", "bfloat16")


@pytest.fixture(autouse=True)
def pages_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAGE_SIZES, "cpu", 256)
    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is for a GPU is checked here."""

    def on_the_cpu(attend: Attend, case: AttentionCase, _: torch.device) -> float:
        return difference(attend, case, CPU)

    monkeypatch.setattr(attention_selection, "difference", on_the_cpu)


def test_other_sizes_of_pages_and_heads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="heads of keys and values alike"):
        difference(varlen_attention, replace(PLAIN, value_dim=32), CPU)
    monkeypatch.setitem(PAGE_SIZES, "cpu", 16)
    with pytest.raises(RuntimeError, match="block size must be divisible by 256"):
        difference(varlen_attention, PLAIN, CPU)


@pytest.mark.parametrize("name", ["plain", "no groups", "window"])
def test_keys_that_are_split_where_torch_can_not_are_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a torch that splits whatever it is told."""

    def splits(*args: Any, **given: Any) -> torch.Tensor:
        return varlen_attn(*args, **{**given, "num_splits": None})

    monkeypatch.setattr(varlen, "varlen_attn", splits)
    assert difference(varlen_attention, CASES[name], CPU) == float("inf")


def flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    softmax_scale: float,
    window_size: tuple[int, int],
    causal: bool,
) -> tuple[torch.Tensor, None]:
    """As FlashAttention 3 of the kernels package is called."""
    assert causal
    key_starts = torch.cat([seqused_k.new_zeros(1), seqused_k.cumsum(0, dtype=torch.int32)])
    args = q, k, v, cu_seqlens_q, key_starts, max_seqlen_q, max_seqlen_k
    given = {"seqused_k": seqused_k, "block_table": block_table, "enable_gqa": True}
    window = window_size[0], 0
    out = varlen_attn(*args, scale=softmax_scale, window_size=window, num_splits=1, **given)  # type: ignore[arg-type]
    return out, None


def flash_2(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    block_table: torch.Tensor,
) -> torch.Tensor:
    """As FlashAttention 2's, which is told lengths by their sums."""
    lengths, longest = cu_seqlens_k.diff(), (max_seqlen_q, max_seqlen_k)
    more: Any = lengths, block_table, softmax_scale, window_size, causal
    return flash(q, k, v, cu_seqlens_q, *longest, *more)[0]


FLASH = flash_attention(flash)


@pytest.mark.parametrize("attend", [varlen_attention, FLASH, flash_attention(flash_2)])
@pytest.mark.parametrize("name", TAKEN)
def test_each_is_given_what_it_takes(name: str, attend: Attend) -> None:
    assert difference(attend, CASES[name], CPU) <= TOLERANCE[CASES[name].dtype]


@pytest.mark.parametrize("attend, name, what", [
    (varlen_attention, "softcap", "soft caps, no chunks and no sinks"),
    (varlen_attention, "sinks", "soft caps, no chunks and no sinks"),
    (FLASH, "softcap", "softcap"),
    (FLASH, "sinks", "s_aux"),
])  # fmt: skip
def test_what_one_does_not_take_is_not_left_out(attend: Attend, name: str, what: str) -> None:
    with pytest.raises(NotImplementedError, match=f"it takes no {what}"):
        difference(attend, CASES[name], CPU)


def without_windows(q: Any, keys: Any, values: Any, step: Any, rule: AttentionRule) -> Any:
    return plain_attention(q, keys, values, step, AttentionRule(rule.scale))


def not_installed() -> Attend:
    raise ImportError("the package is not installed")


@pytest.mark.usefixtures("on_the_cpu")
def test_the_first_that_agrees_in_all_cases_is_taken(
    monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    def tried(_: torch.device) -> Iterator[tuple[str, Callable[[], Attend]]]:
        yield "first", not_installed
        yield "second", lambda: without_windows
        yield "third", lambda: varlen_attention
        yield "fourth", lambda: plain_attention

    monkeypatch.setattr(attention_selection, "candidates", tried)
    found = select_attention(lambda: {CASES["plain"], CASES["window"]}, CUDA)
    assert found is varlen_attention
    (line,) = log_lines
    assert line.startswith(
        "I attention by third; not first: ImportError: the package is not installed; not second: "
        "differs by 0."
    )
    assert line.endswith(" from plain attention, allowed is 0.0001")


@pytest.mark.usefixtures("on_the_cpu")
def test_varlen_attn_is_tried_first_and_gathered_pages_take_what_nothing_does(
    log_lines: list[str],
) -> None:
    assert select_attention(lambda: {PLAIN}, CUDA) is varlen_attention
    assert select_attention(lambda: {CASES["softcap"]}, CUDA) is plain_attention
    taken, gathered = log_lines
    assert taken == "I attention by varlen_attn"
    assert gathered == (
        "W attention gathers pages, slowly and without CUDA graphs; "
        "varlen_attn: NotImplementedError: it takes no soft caps, no chunks and no sinks; "
        "FlashAttention 3 and FlashAttention 2: ImportError: the package kernels is not installed"
    )


def test_on_a_cpu_nothing_is_tried(log_lines: list[str]) -> None:
    assert select_attention(lambda: pytest.fail("tried"), CPU) is plain_attention
    assert log_lines == []
