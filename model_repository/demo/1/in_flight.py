"""The in-flight engine: requests join and leave a running batch at every step.

Puts scheduler, runner, cache and sampler together; each of them knows nothing of the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from hf_runtime.errors import LoadError, reason

from .cuda_graphs import with_cuda_graphs
from .engine import Engine
from .holding import CannotHoldError, Runner, fitting_runner
from .kv_cache import (
    CacheSize,
    KVCache,
    context_length,
    layer_shapes,
    plan_size,
    spread_free_bytes,
    stable_length,
)
from .sampling import Sampler
from .scheduler import Scheduler
from .sequence import Sequence


class InFlightEngine(Engine):
    """Generates for many sequences at once, one token each a step."""

    name = "in_flight"
    size: CacheSize
    runner: Runner

    @property
    def max_num_seqs(self) -> int:
        return self.size.num_slots

    @property
    def max_model_len(self) -> int:
        return self.size.max_model_len

    @property
    def description(self) -> str:
        return (
            f"in_flight engine ({self.runner.name}), {self.size.num_slots} sequences x "
            f"{self.size.max_model_len} tokens, KV cache {self.size.gib:.2f} GiB"
        )

    def _prepare(self) -> None:
        """Sizes the cache, finds the runner that holds the model, makes the model fast.

        Raises:
            CannotHoldError: the architecture does not fit this engine.
            LoadError: the cache does not fit.
        """
        setup, options = self.setup, self.setup.options
        try:
            shapes = layer_shapes(setup.model, setup.device)
        except Exception as error:
            # Any failure of an unknown architecture means the same: not in flight.
            raise CannotHoldError(reason(error)) from error
        config = setup.model.config.get_text_config()
        stable = stable_length(config)
        self.size = plan_size(
            shapes,
            model_limit=stable if stable and not options.max_model_len else context_length(config),
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            kv_cache_gib=options.kv_cache_gib,
            free_bytes=spread_free_bytes(shapes, setup.free_bytes),
        )
        if stable and self.size.max_model_len > stable:
            raise CannotHoldError(
                f"one sequence of more than {stable} tokens changes the rotary embedding of all; "
                f"with max_model_len {stable} or less it can"
            )
        make_runner = fitting_runner(setup.model, shapes, setup.device)
        setup.prepare(setup.model)
        spare = 1 if setup.device.type == "cuda" else 0
        try:
            self._cache = KVCache(shapes, self.size, spare)
        except (RuntimeError, MemoryError) as error:
            raise LoadError(
                f"no memory for a KV cache of {self.size.gib:.2f} GiB: {reason(error)}"
            ) from error
        self.runner = with_cuda_graphs(
            make_runner(setup.model, self._cache, setup.device), setup.device
        )
        self._sampler = Sampler(sorted(setup.eos_token_ids))
        self._scheduler = Scheduler(self.size.num_slots, options.max_num_batched_tokens)

    def _has_work(self) -> bool:
        return self._scheduler.has_work

    def _add(self, sequences: Iterable[Sequence]) -> None:
        self._scheduler.add(sequences)

    def _step(self) -> None:
        """Forward, sample, answer what is finished, close the holes it leaves."""
        step = self._scheduler.schedule()
        logits = self.runner.forward(step)
        sampled = step.sampled
        if not sampled:
            return
        for sequence, token_id in zip(sampled, self._sampler.sample(logits, sampled), strict=True):
            sequence.append(token_id, self.setup.eos_token_ids)
        finished = [sequence for sequence in sampled if sequence.finish_reason is not None]
        moves = self._scheduler.retire(finished)
        for sequence in finished:
            self._sampler.forget(sequence)
        self._answer(finished)
        self._cache.move(moves)

    def _drain_running(self) -> list[Sequence]:
        return self._forgotten(self._scheduler.drain_running())

    def _drain(self) -> list[Sequence]:
        return self._forgotten(self._scheduler.drain())

    def _forgotten(self, sequences: list[Sequence]) -> list[Sequence]:
        for sequence in sequences:
            self._sampler.forget(sequence)
        return sequences
