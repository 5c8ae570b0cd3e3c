"""Steps over a paged cache, and what attention over them is in float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

PAGE = 16
_NUM_PAGES = 40
# How far off a dtype's result may be, as a share of the whole.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@dataclass(frozen=True)
class Case:
    """A layer's shape and rule, and a step's sequences: how many tokens each has in the step, and
    to how many it attends.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int = 0
    softcap: float = 0.0
    has_sinks: bool = False
    # decodes, the first and the third of a shared prefix; chunks, one of a whole prompt; padding
    query_lens: tuple[int, ...] = (1, 1, 1, 5, 40, 1, 3)
    lengths: tuple[int, ...] = (33, 1, 130, 5, 100, 0, 0)


@dataclass
class Inputs:
    """A case's random tensors; queries are a view of wider rows, as they are of joint products."""

    case: Case
    dtype: torch.dtype
    q: torch.Tensor = field(init=False)
    keys: torch.Tensor = field(init=False)
    values: torch.Tensor = field(init=False)
    sinks: torch.Tensor | None = field(init=False)
    starts: torch.Tensor = field(init=False)
    lengths: torch.Tensor = field(init=False)
    first_page: torch.Tensor = field(init=False)
    pages: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        case, random = self.case, torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=random).to(self.dtype)

        num_tokens, width = sum(case.query_lens), case.heads * case.key_dim
        wide = normal(num_tokens, width + 48)
        self.q = wide[:, :width].unflatten(1, (case.heads, case.key_dim))
        self.keys = normal(_NUM_PAGES, PAGE, case.kv_heads, case.key_dim)
        self.values = normal(_NUM_PAGES, PAGE, case.kv_heads, case.value_dim)
        self.sinks = normal(case.heads) if case.has_sinks else None
        counts = [-(-length // PAGE) for length in case.lengths]
        self.starts = torch.tensor([0, *case.query_lens]).cumsum(0).int()
        self.lengths = torch.tensor(case.lengths).int()
        self.first_page = torch.tensor([0, *counts[:-1]]).cumsum(0).int()
        self.pages = torch.randperm(_NUM_PAGES, generator=random)[: sum(counts)].int()
        if len(counts) > 2:
            shared = self.first_page[2]
            self.pages[shared : shared + 2] = self.pages[:2]

    def attend(self) -> torch.Tensor:
        """What the kernels make of it."""
        case = self.case
        step = (self.starts, self.lengths, self.first_page, self.pages, max(case.query_lens))
        rule = (case.key_dim**-0.5, case.window, case.softcap, self.sinks)
        out: torch.Tensor = torch.ops.hf_triton.paged_attention(
            self.q, self.keys, self.values, *step, *rule
        )
        return out

    def expected(self) -> torch.Tensor:
        """The same in float64, sequence by sequence; zeros for padding."""
        case = self.case
        out = torch.zeros(len(self.q), case.heads, case.value_dim, dtype=torch.float64)
        for number, length in enumerate(case.lengths):
            first, last = int(self.starts[number]), int(self.starts[number + 1])
            if length:
                out[first:last] = self._attended(number, self.q[first:last].double(), length)
        return out

    def _attended(self, number: int, q: torch.Tensor, length: int) -> torch.Tensor:
        case, first = self.case, int(self.first_page[number])
        pages = self.pages[first : first + -(-length // PAGE)].long()
        group = case.heads // case.kv_heads
        keys, values = (
            stored[pages].flatten(0, 1)[:length].double().repeat_interleave(group, 1)
            for stored in (self.keys, self.values)
        )
        scores = torch.einsum("thd,nhd->htn", q, keys) * case.key_dim**-0.5
        if case.softcap:
            scores = torch.tanh(scores / case.softcap) * case.softcap
        positions, columns = torch.arange(length - len(q), length)[:, None], torch.arange(length)
        hidden = columns > positions
        if case.window:
            hidden |= columns <= positions - case.window
        scores = scores.masked_fill(hidden, float("-inf"))
        if self.sinks is not None:
            sinks = self.sinks.double()[:, None, None].expand(-1, len(q), 1)
            scores = torch.cat([scores, sinks], dim=-1)
        return torch.einsum("htn,nhd->thd", scores.softmax(-1)[..., :length], values)


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference, as a share of the norm of what is expected."""
    return float((got.double() - expected).norm() / expected.norm())
