"""Steps replayed as CUDA graphs: one launch a step instead of hundreds.

A graph has fixed shapes, so one is captured for each of some numbers of tokens, for decodes alone
and for steps with prompts, and a step runs in the smallest that holds it. Padding writes to page 0,
and its logits are dropped. Steps of more tokens than the largest graph run eagerly: they take the
device longer than the host takes to launch them.

All are captured at load, the largest first, so that the others find room in the memory it took.
What can't be captured runs eagerly; the log says so once.

See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hf_triton.runtime.devices.cuda_capture import Capture, Replay, capture_on_stream
from hf_triton.runtime.devices.device import devices_of
from hf_triton.runtime.errors import reason
from hf_triton.runtime.log import info, warn
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.memory.pages import PAGE_SIZE, num_pages_of

from ..transformers.experts import MOST_TOKENS as MOST_TOKENS_OF_EXPERTS
from ..transformers.runner import Runner
from .runner import PageRunner
from .step import PagedStep, StepShape, lay_out_pages, views

MOST_TOKENS = 2048
_TOKEN_STEP = 16
_MOST_PAGE_NUMBERS = 2**22  # 16 MiB; a step that refers to more pages runs eagerly
_MOST_COLUMNS = 2**18
_MOST_FAILURES = 3  # of captures, before the first that succeeds
_TOLERANCE = 3e-2  # of the logits' range; the same kernels run, so logits should be equal


@dataclass(frozen=True)
class _Graph:
    shape: StepShape
    replay: Replay


def with_cuda_graphs(runner: Runner, device: torch.device, max_num_batched_tokens: int) -> Runner:
    """The runner with its steps under CUDA graphs where it can be captured, else itself."""
    if device.type != "cuda" or not isinstance(runner, PageRunner):
        return runner
    if len(devices_of(runner.model)) > 1:
        return runner
    graphed = GraphedRunner(runner, capture_on_stream(device), max_num_batched_tokens)
    graphed.capture_all()
    return graphed if graphed.num_graphs else runner


class GraphedRunner(Runner):
    """A runner over pages whose steps replay what ``capture`` recorded."""

    keeps_pages = True

    def __init__(self, inner: PageRunner, capture: Capture, max_num_batched_tokens: int) -> None:
        self.inner, self.cache, self.device = inner, inner.cache, inner.device
        self.name = f"{inner.name}, CUDA graphs"
        self._capture = capture
        size = inner.cache.size
        self._max_num_seqs = size.max_num_seqs
        most = min(max_num_batched_tokens, MOST_TOKENS, size.num_tokens)
        self._sizes = {  # by whether a step has chunks
            False: token_counts(1, min(most, self._max_num_seqs)),
            True: token_counts(min(_TOKEN_STEP, most), most) if inner.captures_chunks else [],
        }
        self._graphs: dict[tuple[bool, int], _Graph] = {}
        num_pages = self._max_num_seqs * num_pages_of(size.max_model_len)
        num_numbers = sum(self._shape(most).sizes.values()) + _MOST_COLUMNS
        num_numbers += min(num_pages, _MOST_PAGE_NUMBERS)
        self._buffer = torch.zeros(num_numbers, dtype=torch.int32, device=inner.device)
        self._logits = torch.empty(0)  # all graphs write here

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def capture_all(self) -> None:
        """Captures every size; those that fail are left out."""
        sizes = [(count, chunks) for chunks, counts in self._sizes.items() for count in counts]
        failures: list[Exception] = []
        began_s = time.monotonic()
        for num_tokens, has_chunks in sorted(sizes, reverse=True):
            # A mixture of experts may ask the host for many tokens, and not for few.
            are_many = num_tokens > MOST_TOKENS_OF_EXPERTS
            if are_many and len(failures) >= _MOST_FAILURES and not self._graphs:
                continue
            try:
                self._graphs[has_chunks, num_tokens] = self._record(num_tokens, has_chunks)
            except Exception as error:
                # Not every model can be captured; running eagerly is always right.
                failures.append(error)
                if not are_many and len(failures) >= _MOST_FAILURES and not self._graphs:
                    break
        if self._graphs:
            chunks = "" if self.inner.captures_chunks else ", for steps without prompts alone"
            took_s = time.monotonic() - began_s
            info(f"captured {self.num_graphs} CUDA graphs in {took_s:.1f} s{chunks}")
        if failures:
            num_without = len(sizes) - self.num_graphs
            what = f"{num_without} of {len(sizes)} sizes" if self._graphs else "all steps"
            kind, why = type(failures[0]).__name__, reason(failures[0])
            warn(f"without CUDA graphs run {what}: {kind}: {why}")
        self._sizes = {
            has_chunks: [count for count in counts if (has_chunks, count) in self._graphs]
            for has_chunks, counts in self._sizes.items()
        }

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_rows, vocab) in the order of ``step.all_rows``,
        written over by the next; see ``StepInputs`` for what else is on the device then.
        """
        graph = self._graph(step)
        if graph is None:
            return self.inner.forward(step)
        host = lay_out_pages(step, graph.shape, pinned=self._buffer.is_cuda)
        if len(host.buffer) > len(self._buffer):
            return self.inner.forward(step)
        self._buffer[: len(host.buffer)].copy_(host.buffer, non_blocking=True)
        host.placed(self._buffer[: len(host.buffer)], self.cache)
        return graph.replay()[: len(step.all_rows)]

    def _graph(self, step: Step) -> _Graph | None:
        """The smallest graph that holds a step."""
        has_chunks = bool(step.prefills or step.drafts)
        sizes = self._sizes[has_chunks]
        at = bisect_left(sizes, step.num_tokens)
        found = self._graphs[has_chunks, sizes[at]] if at < len(sizes) else None
        num_seqs = len(step.decodes) + len(step.prefills) + len(step.drafts)
        # A drafting sequence stands there twice, and has more than one row.
        fits = found is not None and max(num_seqs, len(step.all_rows)) <= found.shape.num_seqs
        return found if fits else None

    def _shape(self, num_tokens: int) -> StepShape:
        num_seqs = min(num_tokens, self._max_num_seqs)
        return StepShape(num_tokens, num_seqs, num_last=num_seqs)

    @torch.inference_mode()
    def _record(self, num_tokens: int, has_chunks: bool) -> _Graph:
        shape = self._shape(num_tokens)
        counts = [num_tokens] if has_chunks else [1] * num_tokens
        self._fill_in_dummies(shape, counts)

        def run() -> torch.Tensor:
            parts = views(self._buffer, shape, len(self._buffer) - sum(shape.sizes.values()))
            step = PagedStep(self.cache, **parts, max_query_len=max(counts))
            logits: torch.Tensor = self.inner.run(step)
            if not len(self._logits):
                self._logits = torch.empty_like(logits)
            return self._logits[: len(logits)].copy_(logits)

        replay = self._capture(run)
        _check_replay(replay, run)
        return _Graph(shape, replay)

    def _fill_in_dummies(self, shape: StepShape, counts: list[int]) -> None:
        """Puts sequences of ``counts`` tokens, all that they attend to, into the buffer; pages that
        have a number write to themselves, so that running it twice gives the same.
        """
        num_seqs, num_pages = len(counts), num_pages_of(counts[0])
        self._buffer.zero_()
        parts = views(self._buffer, shape, num_pages)
        positions = torch.cat([torch.arange(count) for count in counts])
        ends = torch.tensor(counts).cumsum(0)
        parts["starts"].fill_(shape.num_tokens)
        parts["starts"][:num_seqs].copy_(ends - torch.tensor(counts))
        parts["lengths"][:num_seqs].copy_(torch.tensor(counts))
        parts["positions"].copy_(positions)
        parts["rows"].copy_(positions + PAGE_SIZE)  # from page 1 on
        parts["pages"].copy_(torch.arange(1, num_pages + 1))


def token_counts(least: int, most: int) -> list[int]:
    """1, 2, 4, 8, then multiples of 16, each up to an eighth more than the one before, from
    ``least`` to ``most``: of a step of more than 128 tokens at most an eighth is padding.
    """
    counts, count = [1, 2, 4, 8], _TOKEN_STEP
    while count < most:
        counts.append(count)
        count += max(_TOKEN_STEP, count // 8 // _TOKEN_STEP * _TOKEN_STEP)
    return [count for count in counts if least <= count < most] + [most]


def _check_replay(replay: Replay, run: Callable[[], torch.Tensor]) -> None:
    """Raises RuntimeError where a replay gives other logits than running eagerly: what a model
    launches on another stream is not in the graph, and CUDA reports no error for it.
    """
    expected = run().to(torch.float32, copy=True)
    span = (expected.max() - expected.min()).clamp_min(1e-6)
    difference = float(((replay().float() - expected).abs().max() / span).item())
    if not difference <= _TOLERANCE:  # NaN neither
        raise RuntimeError(f"a replayed step's logits differ by {difference:.2g} of their range")
