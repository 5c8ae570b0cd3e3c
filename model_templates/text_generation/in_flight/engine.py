"""The in-flight engine: requests join and leave a running batch at every step (continuous batching,
https://www.usenix.org/conference/osdi22/presentation/yu).

Puts scheduler, runner, cache and sampler together; each of them knows nothing of the others.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from hf_runtime.devices.device import total_bytes
from hf_runtime.errors import reason

from ..engine.engine import Engine
from ..engine.scheduler import Scheduler
from ..kv.kv_cache import CacheSize, context_length, layer_shapes, stable_length
from ..kv.paged_cache import PagedSize
from ..lora.linear import attach
from ..runners.adapter_runner import AdaptedRunner
from ..runners.cuda_graphs import with_cuda_graphs
from ..sampling.sampler import Sampler, argmax
from ..sequence.sequence import Sequence
from ..structured.following import wait_for_masks
from ..structured.grammar import tell_all
from .rotary import settle_rotary
from .runner_selection import Runner, UnsupportedModelError, select_runner
from .step_tokens import max_num_batched_tokens
from .storage import allocate, plan_storage
from .warm_up import warm_up

_LONGEST_WAIT_S = 0.05  # for grammars, which mostly take less than the step


class InFlightEngine(Engine):
    """Generates for many sequences at once, one token each a step."""

    name = "in_flight"
    size: CacheSize | PagedSize
    runner: Runner

    @property
    def max_num_seqs(self) -> int:
        return self.size.max_num_seqs

    @property
    def max_model_len(self) -> int:
        return self.size.max_model_len

    @property
    def description(self) -> str:
        return (
            f"in_flight engine ({self.runner.name}), {self._storage.description}, "
            f"KV cache {self.size.gib:.2f} GiB"
        )

    def prepare(self) -> None:
        """Sizes the cache, selects the runner, prepares the model's layers.

        Raises:
            UnsupportedModelError: the architecture can't be served by this engine.
            LoadError: the cache does not fit.
        """
        setup, options = self.setup, self.setup.options
        try:
            shapes = layer_shapes(setup.model, setup.device)
        except Exception as error:
            # Any failure of an unknown architecture means the same: this engine can't serve it.
            raise UnsupportedModelError(reason(error)) from error
        in_pages = setup.device.type == "cuda" if setup.paged is None else setup.paged
        config = setup.model.config.get_text_config()
        stable = stable_length(config)
        model_limit = stable if stable and not options.max_model_len else context_length(config)
        storage = plan_storage(setup, shapes, model_limit, in_pages=in_pages)
        if stable and storage.size.max_model_len > stable:
            raise UnsupportedModelError(
                f"one sequence of more than {stable} tokens changes the rotary embedding of all; "
                f"with max_model_len {stable} or less it can"
            )
        make_runner = select_runner(setup.model, shapes, setup.device, in_pages)
        settle_rotary(setup.model, storage.size.max_model_len)
        if in_pages and not getattr(make_runner, "keeps_pages", False):
            storage = plan_storage(setup, shapes, model_limit, in_pages=False)
        self._storage, self.size = storage, storage.size
        setup.prepare(setup.model)
        if setup.adapters is not None:
            attach(setup.model, setup.adapters)
        self._cache = allocate(self._storage)
        runner = make_runner(setup.model, self._cache, setup.device)
        own_argmax = getattr(runner, "argmax", argmax)
        self._sampler = Sampler(sorted(setup.eos_token_ids), own_argmax)
        self.runner = with_cuda_graphs(runner, setup.device)
        if setup.adapters is not None:
            self.runner = AdaptedRunner(self.runner, runner, setup.adapters, setup.device)
        self._use_new_space(shares=False)
        warm_up(self._scheduler, self.runner, self._sampler, self._cache)
        self._use_new_space(shares=options.prefix_cache)

    def _use_new_space(self, *, shares: bool) -> None:
        setup, num_seqs = self.setup, self.size.max_num_seqs
        self._space = self._storage.new_space(shares=shares)
        num_tokens = max_num_batched_tokens(setup.options, setup.device, total_bytes, num_seqs)
        self._scheduler = Scheduler(num_seqs, num_tokens, self._space)

    @property
    def num_kept(self) -> int:
        """How many ended sequences, or pages of them, can be shared with; not published."""
        return self._space.num_kept

    @property
    def gauges(self) -> dict[str, int]:
        holding = self._scheduler.holding
        return {
            "num_running": len(holding),
            "num_waiting": max(0, self.num_unfinished - len(holding)),
            "kv_cache_bytes": self.size.num_bytes,
            **self._storage.gauges(holding),
        }

    def _has_work(self) -> bool:
        return self._scheduler.has_work

    def _add(self, sequences: Iterable[Sequence]) -> None:
        self._scheduler.add(sequences)

    def _step(self) -> None:
        """Forward, sample, publish; then running sequences move to the slots of finished ones."""
        step = self._scheduler.schedule()
        self.metrics.num_preempted = self._scheduler.num_preempted
        self._cache.copy_slots(step.copies)
        logits = self.runner.forward(step)
        logits, sampled = self._without_late(logits, step.sampled)
        started = [chunk.sequence for chunk in step.prefills if chunk.is_first]
        self.metrics.computed(len(sampled), started)
        if not sampled:
            return
        tokens = self._sampler.sample(logits, sampled)
        tell_all((s.grammar, token.id) for s, token in zip(sampled, tokens, strict=True))
        for sequence, token in zip(sampled, tokens, strict=True):
            sequence.append(token, self.setup.eos_token_ids)
        self._publish(sampled)
        self._remove([sequence for sequence in sampled if sequence.finish_reason is not None])

    def _without_late(
        self, logits: torch.Tensor, sampled: list[Sequence]
    ) -> tuple[torch.Tensor, list[Sequence]]:
        """Leaves out those whose grammar takes long to say what may come next. Their last token is
        computed again in the next step, so that nobody waits for them.
        """
        grammars = [s.grammar for s in sampled if s.grammar is not None]
        if not grammars or wait_for_masks(grammars, _LONGEST_WAIT_S):
            return logits, sampled
        kept = [row for row, s in enumerate(sampled) if s.grammar is None or s.grammar.is_ready]
        for sequence in set(sampled).difference(sampled[row] for row in kept):
            sequence.num_computed_tokens -= 1
        return logits[kept], [sampled[row] for row in kept]

    def _remove(self, sequences: list[Sequence]) -> None:
        copies = self._scheduler.retire(self._forgotten(sequences))
        self._cache.copy_slots(copies)

    def _drain_running(self) -> list[Sequence]:
        return self._forgotten(self._scheduler.drain_running())

    def _drain(self) -> list[Sequence]:
        return self._forgotten(self._scheduler.drain())

    def _forgotten(self, sequences: list[Sequence]) -> list[Sequence]:
        for sequence in sequences:
            self._sampler.forget(sequence)
        return sequences
