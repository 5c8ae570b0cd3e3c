"""Chooses what computes attention over pages on a GPU: the first backend, in the order of their
speed, that does what plain attention does for the layers of the model at hand.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import attention

from hf_triton.runtime import log
from hf_triton.runtime.errors import reason
from hf_triton.text_generation.memory.pages import PAGE_SIZE, num_pages_of

from ..paged.attention import Attend
from ..paged.plain_attention import plain_attention
from ..paged.step import PagedStep
from ..transformers.packed_attention import AttentionRule

_FLASH_ATTENTION = {  # of the kernels package, by the least capability
    "FlashAttention 3": ("kernels-community/vllm-flash-attn3", (8, 0)),
    "FlashAttention 2": ("kernels-community/flash-attn2", (8, 0)),
}
# What torch can be given that takes pages of any size, by the card's major capability, and the
# module it is in: the checks of torch/nn/attention/_fa3.py and _fa4.py.
_ACTIVATED = {9: ("FA3", "flash_attn_interface"), 10: ("FA4", "flash_attn.cute")}
# The largest difference from plain attention, as a share of the whole.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class AttentionCase:
    """How a layer attends."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    rule: AttentionRule
    has_sinks: bool


class RecordingAttention:
    """Plain attention that notes how each layer attends."""

    def __init__(self) -> None:
        self.cases: set[AttentionCase] = set()

    def __call__(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: PagedStep,
        rule: AttentionRule,
    ) -> torch.Tensor:
        sizes = (q.shape[1], keys.shape[2], keys.shape[3], values.shape[3])
        without = AttentionRule(rule.scale, rule.window, rule.softcap)
        self.cases.add(AttentionCase(*sizes, q.dtype, without, rule.sinks is not None))
        return plain_attention(q, keys, values, step, rule)


def select_attention(cases: Callable[[], set[AttentionCase]], device: torch.device) -> Attend:
    """The first backend that agrees with plain attention in all cases; the log says which, and why
    not those before it. Plain attention on a CPU, and where there are no cases.
    """
    found = cases() if device.type == "cuda" else set()
    if not found:
        return plain_attention
    refused = []
    for name, load in backends(device):
        try:
            attend = load()
            for case in found:
                _check(attend, case, device)
        except Exception as error:
            # Whatever it raises, it can't be used here.
            refused.append(f"{name}: {type(error).__name__}: {reason(error, 120)}")
            if attention.current_flash_attention_impl() is not None:  # also of torch's attention
                attention.restore_flash_attention_impl()
        else:
            log.info("; ".join([f"attention by {name}", *(f"not {why}" for why in refused)]))
            return attend
    log.warn("; ".join(["attention by torch's operators, slowly", *refused]))
    return plain_attention


def backends(device: torch.device) -> Iterator[tuple[str, Callable[[], Attend]]]:
    """Their names and how each is loaded, which may raise anything; the fastest first."""
    yield "varlen_attn", lambda: _varlen_attn(device)
    for name in _FLASH_ATTENTION:
        yield name, lambda name=name: _flash_attention(name, device)  # type: ignore[misc]
    yield "our kernel", _own_kernel


def _own_kernel() -> Attend:
    from .attention import kernel_attention

    return kernel_attention


def _varlen_attn(device: torch.device) -> Attend:
    """torch's entry to FlashAttention, where one is installed that takes pages of this size; the
    one built in, FlashAttention 2, takes multiples of 256 tokens.
    """
    from torch.nn.attention.varlen import varlen_attn

    name, module = _ACTIVATED.get(torch.cuda.get_device_capability(device)[0], (None, None))
    if name is None or module is None:
        raise RuntimeError("it takes small pages on sm_90 and sm_100 alone")
    if not _is_installed(module):
        raise ImportError(f"for small pages it needs {module}, which is not installed")
    attention.activate_flash_attention_impl(name)

    def attend(
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: PagedStep,
        rule: AttentionRule,
    ) -> torch.Tensor:
        if rule.softcap or rule.sinks is not None:
            raise NotImplementedError("it takes no soft caps and no sinks")
        longest = step.cache.size.max_model_len
        out: torch.Tensor = varlen_attn(  # type: ignore[assignment]
            *(q, keys, values, step.starts, None, step.max_query_len, longest),
            scale=rule.scale,
            window_size=_window(rule),
            enable_gqa=True,
            seqused_k=step.lengths,
            block_table=_block_table(step),
        )
        return out

    return attend


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def _flash_attention(name: str, device: torch.device) -> Attend:
    """FlashAttention as the kernels package has it for this machine."""
    from transformers.integrations.hub_kernels import get_kernel
    from transformers.modeling_flash_attention_utils import FLASH_ATTN_KERNEL_VERSIONS

    if not _is_installed("kernels"):
        raise ImportError("the package kernels is not installed")
    repo, least = _FLASH_ATTENTION[name]
    if torch.cuda.get_device_capability(device) < least:
        raise RuntimeError(f"for cards from sm_{least[0]}{least[1]} on")
    kernel = get_kernel(repo, version=FLASH_ATTN_KERNEL_VERSIONS[repo])
    return flash_attention(kernel.flash_attn_varlen_func)


def flash_attention(function: Callable[..., Any]) -> Attend:
    """Attention by a ``flash_attn_varlen_func`` that takes pages; their arguments differ."""
    known = inspect.signature(function).parameters

    def attend(
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: PagedStep,
        rule: AttentionRule,
    ) -> torch.Tensor:
        arguments = {
            "cu_seqlens_q": step.starts,
            "max_seqlen_q": step.max_query_len,
            "max_seqlen_k": step.cache.size.max_model_len,
            "seqused_k": step.lengths,
            "block_table": _block_table(step),
            "softmax_scale": rule.scale,
            "causal": True,
            "window_size": _window(rule),
            **({"softcap": rule.softcap} if rule.softcap else {}),
            **({"s_aux": rule.sinks} if rule.sinks is not None else {}),
        }
        if missing := arguments.keys() - known.keys():
            raise NotImplementedError(f"it takes no {', '.join(sorted(missing))}")
        out = function(q, keys, values, **arguments)
        found: torch.Tensor = out[0] if isinstance(out, tuple) else out
        return found

    return attend


def _window(rule: AttentionRule) -> tuple[int, int]:
    """Tokens to the left and to the right of a token that it attends to, -1 for all."""
    return (rule.window - 1 if rule.window else -1, 0)


def _block_table(step: PagedStep) -> torch.Tensor:
    """(num_seqs, pages of max_model_len) int32: the pages of each sequence, then 0."""
    if "block_table" not in step.kept:
        number = torch.arange(num_pages_of(step.cache.size.max_model_len), device=step.pages.device)
        at = (step.first_page.unsqueeze(1) + number).clamp(max=len(step.pages) - 1)
        is_own = number * PAGE_SIZE < step.lengths.unsqueeze(1)
        step.kept["block_table"] = torch.where(is_own, step.pages[at], 0)
    found: torch.Tensor = step.kept["block_table"]
    return found


def _check(attend: Attend, case: AttentionCase, device: torch.device) -> None:
    """Raises ValueError where a backend does not do what plain attention does."""
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(device, case.dtype)

    step = _small_step(device)
    q = normal(step.num_tokens, case.heads, case.key_dim)
    pages = (len(step.pages) + 1, PAGE_SIZE, case.kv_heads)
    keys, values = normal(*pages, case.key_dim), normal(*pages, case.value_dim)
    for stored in (keys, values):
        _leave_nan(stored, step)
    rule = case.rule
    if case.has_sinks:
        rule = AttentionRule(rule.scale, rule.window, rule.softcap, normal(case.heads))
    expected = plain_attention(q, keys, values, step, rule).float()
    got = attend(q, keys, values, step, rule).float()
    difference = float(((got - expected).norm() / expected.norm()).item())
    if not difference <= _TOLERANCE[case.dtype]:  # NaN neither
        raise ValueError(f"differs by {difference:.2g} from plain attention")


def _leave_nan(stored: torch.Tensor, step: PagedStep) -> None:
    """Puts what a sequence may leave where no token is: a backend has to leave it alone."""
    stored[0] = torch.nan
    starts = [*step.first_page.tolist(), len(step.pages)]
    for end, length in zip(starts[1:], step.lengths.tolist(), strict=True):
        stored[step.pages[end - 1], (length - 1) % PAGE_SIZE + 1 :] = torch.nan


def _small_step(device: torch.device) -> PagedStep:
    """Two decodes, a chunk of 20 of 50 tokens and one of 3, over pages out of order."""
    counts, lengths = [1, 1, 20, 3], [5, 70, 50, 3]
    starts = [0, *accumulate(counts)]
    num_pages = [num_pages_of(length) for length in lengths]
    ends = [0, *accumulate(num_pages)]
    numbers = {
        "starts": starts,
        "lengths": lengths,
        "first_page": ends[:-1],
        "pages": list(range(ends[-1], 0, -1)),
        **{name: [0] * sum(counts) for name in ("token_ids", "positions", "rows", "adapters")},
        **{name: [0] for name in ("slots", "last", "columns")},
    }
    tensors: dict[str, Any] = {
        name: torch.tensor(values, dtype=torch.int32, device=device)
        for name, values in numbers.items()
    }
    cache: Any = SimpleNamespace(size=SimpleNamespace(max_model_len=max(lengths)))
    step = PagedStep(cache, **tensors, max_query_len=max(counts))
    step.kept["on_host"] = starts, lengths
    return step
