"""The in-flight engine: requests join and leave a running batch at every step (continuous batching,
https://www.usenix.org/conference/osdi22/presentation/yu).

Puts scheduler, runner, cache and sampler together; each of them knows nothing of the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import replace

import torch

from hf_triton.runtime import log
from hf_triton.runtime.errors import NO_NUMBERS, EngineError, LoadError, RuntimeModelError, reason
from hf_triton.runtime.fused.parts import UnsupportedLayersError
from hf_triton.text_generation.engine.engine import Engine, EngineSetup
from hf_triton.text_generation.engine.generation_rules import GenerationRules, has_rules, vocab_size
from hf_triton.text_generation.engine.scheduler import Scheduler
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.engine.step_times import StepTimes
from hf_triton.text_generation.forward.paged.graphs import with_cuda_graphs
from hf_triton.text_generation.forward.transformers.transformers_runner import AdaptedSteps, Runner
from hf_triton.text_generation.lora.linear import Adapter
from hf_triton.text_generation.memory.layer_shapes import keep_states
from hf_triton.text_generation.memory.paged_cache import PagedCache
from hf_triton.text_generation.memory.pages import PagedSize
from hf_triton.text_generation.memory.state_pages import new_space
from hf_triton.text_generation.sampling.drafter import Drafter, accepted_rows
from hf_triton.text_generation.sampling.random_sampling import load_loops
from hf_triton.text_generation.sampling.sampler import Sampled, Sampler
from hf_triton.text_generation.sampling.token_logprobs import prompt_logprobs
from hf_triton.text_generation.sequence.sequence import NO_TOKEN, Sequence, TokenLogprobs
from hf_triton.text_generation.sequence.source import text_source
from hf_triton.text_generation.structured.grammar import wait_for_masks

from .encoder_decoders import plan_encoder_decoder
from .largest_step import max_num_batched_tokens
from .media_plan import encode_sources
from .plan import plan_decoder
from .runner_selection import UnsupportedModelError
from .trial import warm_up

# Rows of logits in a step with drafts, for each sequence that a model serves at once, and at least.
# A GPU's memory is planned for one.
_DRAFTED_ROWS = {"cpu": 4, "cuda": 1}
_FEWEST_DRAFTED_ROWS = 32
# The logits of a step's prompts, where all are wanted: 128 MiB in float32.
MOST_LOGITS = 2**25
_LONGEST_WAIT_S = 0.05  # for grammars, which mostly take less than the step


class InFlightEngine(Engine):
    name = "in_flight"
    resumes_streams = True
    size: PagedSize
    runner: Runner

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        self._nan_sequences: set[Sequence] = set()  # with scores that are NaN
        self._drafter: Drafter | None = None
        self._rules: GenerationRules | None = None  # the model's own
        self._step_times = StepTimes()

    def _chunked_prefill(self, *, with_source: bool) -> bool:
        plan = self._plan
        return plan.make_runner.chunked_prefill and (plan.cuts_sources or not with_source)

    def prepare(self) -> None:
        """Sizes the cache, selects the runner, prepares the model's layers.

        Raises:
            UnsupportedModelError: the architecture can't be served by this engine.
            LoadError: the cache does not fit.
        """
        setup = self.setup
        is_decoder = not setup.model.config.is_encoder_decoder
        self._plan = (plan_decoder if is_decoder else plan_encoder_decoder)(setup)
        self.size, self.max_source_len = self._plan.size, self._plan.max_source_len
        self.max_num_seqs, self.max_model_len = self.size.max_num_seqs, self.size.max_model_len
        self._max_num_scored = max(1, MOST_LOGITS // vocab_size(setup.model))
        self._max_num_batched_tokens = max_num_batched_tokens(
            setup.options, setup.device, self.max_num_seqs
        )
        try:
            cache = PagedCache(self._plan.shapes, self.size)
        except (RuntimeError, MemoryError) as error:
            raise LoadError(
                f"no memory for a KV cache of {self.size.gib:.2f} GiB: {reason(error)}"
            ) from error
        try:
            runner: Runner = self._plan.make_runner(setup.model, cache, setup.device)
        except UnsupportedLayersError as error:
            raise UnsupportedModelError(f"prepared layers: {reason(error)}") from error
        self._takes_snapshots = runner.takes_snapshots
        self._sampler = Sampler(sorted(setup.eos_token_ids), runner.argmax)
        load_loops(setup.device, setup.model.dtype)
        self.runner = with_cuda_graphs(runner.plain or runner, setup.device)
        if setup.adapters is not None:
            runner.extras = AdaptedSteps(setup.adapters, setup.device)
            runner.name = f"{self.runner.name}, adapters"
        if runner.extras is not None:
            runner.plain, self.runner = self.runner, runner
        self._use_new_space(shares=False)
        try:
            self._warm_up()
        except (RuntimeModelError, torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            # Longer sequences than a trial's may meet what the architecture can't compute so.
            raise UnsupportedModelError(
                f"{self.runner.name}: {type(error).__name__}: {reason(error, 120)}"
            ) from error
        if setup.options.speculative_method == "ngram":
            self._drafter = self._new_drafter(runner)
        shares = setup.options.prefix_cache and self._plan.make_runner.chunked_prefill
        shares = shares and not runner.computes_answers_otherwise
        self._use_new_space(shares=shares)
        most = setup.options.num_speculative_tokens
        drafts = f", speculates by ngram up to {most} tokens" if self._drafter else ""
        sources = f" from sources of {self.max_source_len}" if self.max_source_len else ""
        self.description = (
            f"in_flight engine ({self.runner.name}), {self.size}{sources}, "
            f"KV cache {self.size.gib:.2f} GiB{drafts}"
        )

    def _warm_up(self) -> None:
        sources, model = self.setup.sources, self.setup.model
        if model.config.is_encoder_decoder or has_rules(model):
            self._rules = GenerationRules(model, self.setup.eos_token_ids)
        if longest := self.max_source_len:
            sources = tuple(text_source([0] * min(n, longest)) for n in (3, 16))
        warm_up(self._scheduler, self.runner, self._sampler, sources)

    def _new_drafter(self, runner: Runner) -> Drafter | None:
        """Returns None, with a log line, where the runner can't compute drafts or the model has
        rules of its own, which look at known tokens.
        """
        if not runner.supports_drafts:
            log.info(f"no drafts: the {runner.name} runner can't remove tokens")
            return None
        if self._rules is not None:
            return None
        num_rows = _DRAFTED_ROWS[self.setup.device.type] * self.max_num_seqs
        num_rows = min(max(num_rows, _FEWEST_DRAFTED_ROWS), self._max_num_batched_tokens)
        num_tokens = self.setup.options.num_speculative_tokens
        return Drafter(self._step_times, num_tokens, num_rows)

    def _use_new_space(self, *, shares: bool) -> None:
        plan = self._plan
        self._space = new_space(
            plan.shapes, plan.size, shares=shares, snapshots=self._takes_snapshots
        )
        self._scheduler = Scheduler(
            self.size.max_num_seqs,
            self._max_num_batched_tokens,
            self._space,
            chunked_prefill=plan.make_runner.chunked_prefill,
            cuts_sources=plan.cuts_sources,
            max_num_scored=self._max_num_scored,
            prompt_limit=self._prompt_limit,
            # On a CPU each more sequence makes a step longer.
            pauses_background=self.setup.device.type == "cpu",
        )

    def _prompt_limit(self, decodes: list[Sequence]) -> int:
        """The prompt tokens to compute beside these decodes: few where some are streamed, so
        that their tokens come at an even pace.
        """
        found = None
        if any(sequence.recipient.streams for sequence in decodes):
            num_prompts = self._scheduler.num_prompts
            found = self._step_times.most_prompt_tokens(len(decodes), num_prompts)
        return self._max_num_batched_tokens if found is None else found

    @property
    def gauges(self) -> dict[str, int]:
        num_running, num_used = len(self._scheduler.holding), self._space.num_used
        return {
            "num_running": num_running,
            "num_waiting": max(0, self.thread.num_unfinished - num_running),
            "kv_cache_bytes": self.size.num_bytes,
            "kv_slots": self.size.max_num_seqs,
            "kv_slots_used": num_running,
            "kv_pages": self.size.num_pages - 1,
            "kv_pages_used": num_used,
            "kv_tokens": self.size.num_tokens,
            "kv_tokens_used": num_used * self.size.page_size,
        }

    def _has_work(self) -> bool:
        return self._scheduler.has_work

    def change_adapters(self, adapters: Items[Adapter]) -> None:
        """Serves these from the next step on, and waits for that; running sequences keep the
        adapters that they began with. Called by one thread. Raises LoadError where one changes a
        layer that had to be known at load, OverloadedError where the engine stops or hangs: then
        nothing is changed.
        """
        assert self.setup.adapters is not None
        self.between_steps(self.setup.adapters.change_to(adapters, self.used_adapters))

    def forget_removed_adapters(self) -> None:
        """Frees removed adapters that no sequence needs; called as ``change_adapters`` is."""
        own = self.setup.adapters
        if own is not None and own.removed and not own.removed <= self.used_adapters:
            self.change_adapters(tuple(own.current.values()))

    def _add(self, sequences: Iterable[Sequence]) -> None:
        for sequence in () if self._plan.shares_sources else sequences:
            if sequence.source is not None:
                sequence.source = replace(sequence.source, cache_token_ids=None)
        for sequence in sequences:
            if sequence.begins_with:
                self._resume(sequence)
        self._scheduler.add([one for one in sequences if one.finish_reason is None])

    def _resume(self, sequence: Sequence) -> None:
        """Continues an output whose beginning another process has generated."""
        sequence.first_token_s = sequence.submitted_s
        for token_ids in filter(None, sequence.begins_with):
            for token_id in token_ids:
                self._add_token(sequence, token_id, None)
            self._publish([sequence])
        sequence.preempt()

    def _step(self) -> None:
        begun_s = time.monotonic()
        step, entry = self._scheduler.schedule(), self._plan.entry
        self.metrics.num_preemptions = self._scheduler.num_preempted
        failed: dict[Sequence, EngineError] = {}
        if entry is not None:
            step, failed = encode_sources(step, entry)
        if self._drafter is not None:
            self._drafter.draft(step, self._space.append)
        if step.num_tokens:
            if self.setup.device.type == "cpu":
                self.thread.cpu_threads.computes(step.num_tokens)
            logits = self.runner.compute(step)
            for chunk in step.prefills if entry is not None else ():
                encoded = chunk.sequence.encoded
                if encoded is not None and chunk.end >= encoded.num_tokens:
                    encoded.drop()
            num_rows = len(step.rows)
            if len(logits) > num_rows:
                self._read_prompt_logprobs(step, logits[num_rows:])
                logits = logits[:num_rows]
            if self._rules is not None:
                logits = self._rules.apply(logits, step.sampled)
            self._sample(step, logits, begun_s)
        self._end_prompts(step)
        for sequence, error in failed.items():
            self._scheduler.discard([sequence])
            self._fail([sequence], error)
        if self._nan_sequences:
            self._end_nan_sequences()

    def _end_nan_sequences(self) -> None:
        """Fails sequences with NaN scores. Tokens of others may be the cause, for a mask does not
        hide NaN: those behind a prefix that another sequence computed, or of a draft. Such a
        sequence is computed once more, by itself.
        """
        found = [one for one in self._nan_sequences if one.finish_reason is None]
        self._nan_sequences.clear()
        again = [
            one for one in found if not one.is_alone and (one.num_reused_tokens or self._drafter)
        ]
        self._scheduler.restart(again)
        ended = [one for one in found if one not in again]
        for sequence in ended:
            sequence.end("error", EngineError(NO_NUMBERS))
        self._publish(ended)
        self._scheduler.expel(ended)

    def _read_prompt_logprobs(self, step: Step, logits: torch.Tensor) -> None:
        """Gives the step's sequences what it ``scored`` of their prompts, in logits (rows, vocab).
        Waits for the device.
        """
        first = 0
        for chunk in step.prefills:
            positions, sequence = chunk.scored, chunk.sequence
            if not positions:
                continue
            token_ids = sequence.prompt_token_ids[positions.start + 1 : positions.stop + 1]
            rows = logits[first : first + len(positions)]
            first += len(positions)
            found = prompt_logprobs(rows, token_ids, sequence.params.num_prompt_logprobs or 0)
            if any(math.isnan(one.logprob) for one in found):
                self._nan_sequences.add(sequence)
            else:
                sequence.prompt_logprobs += found

    def _end_prompts(self, step: Step) -> None:
        """Ends sequences that want their prompts' log-probabilities and no output."""
        ended = [c.sequence for c in step.prefills if c.is_end and not c.is_last]
        ended = [sequence for sequence in ended if sequence not in self._nan_sequences]
        if ended:
            for sequence in ended:
                sequence.end("length")
            self._publish(ended)
            self._remove(ended)

    def _sample(self, step: Step, logits: torch.Tensor, begun_s: float) -> None:
        """Samples and publishes the step's tokens; of late grammars and NaN logits, none."""
        sampled = step.sampled
        late = self._late(sampled)
        started = [chunk.sequence for chunk in step.prefills if chunk.is_first]
        self.metrics.computed(len(sampled) - len(late), started, begun_s)
        for sequence in late:
            sequence.num_computed_tokens -= 1
        if len(late) == len(sampled):
            return
        found = self._sampler.sample(logits, step.rows, late)
        if not step.drafts:
            num_decodes = len(step.decodes)
            seconds = time.monotonic() - begun_s
            self._step_times.note(num_decodes, step.num_tokens - num_decodes, seconds)
        runs = accepted_rows(step.rows, found.token_ids, step.drafts)
        for sequence in late:
            del runs[sequence]
        self._nan_sequences |= {s for s, run in runs.items() if found.token_ids[run[0]] == NO_TOKEN}
        for sequence in self._nan_sequences:
            runs.pop(sequence, None)
        self._take_tokens(step, runs, found)

    def _late(self, sampled: list[Sequence]) -> set[Sequence]:
        """Sequences whose grammar takes long to say which tokens may come next. Their last token is
        computed again in the next step, so that others don't wait. A state can't take a token
        twice: there all wait, in the sampler.
        """
        if keep_states(self._plan.shapes) and not self.setup.model.config.is_encoder_decoder:
            return set()
        grammars = [s.grammar for s in sampled if s.grammar is not None]
        if not grammars or wait_for_masks(grammars, _LONGEST_WAIT_S):
            return set()
        return {s for s in sampled if s.grammar is not None and not s.grammar.is_ready}

    def _take_tokens(self, step: Step, runs: dict[Sequence, list[int]], found: Sampled) -> None:
        """Publishes the tokens of rows and removes finished sequences."""
        for sequence, run in runs.items():  # begins in the processes of all grammars at once
            is_forced = self._rules is not None and self._rules.next_of(sequence) is not None
            if sequence.grammar is not None and not is_forced:
                sequence.grammar.tell(found.token_ids[run[0]])
        for sequence, run in runs.items():
            self._append(sequence, run, found)
        self.metrics.num_draft_tokens += sum(len(draft.token_ids) for draft in step.drafts)
        self._publish(runs)
        self._remove([sequence for sequence in runs if sequence.finish_reason is not None])

    def _append(self, sequence: Sequence, run: list[int], found: Sampled) -> None:
        """Adds tokens up to the one that ends the sequence. Keys and values of accepted draft
        tokens are computed; those of wrong ones lie behind them and are overwritten.
        """
        num_before = len(sequence.token_ids)
        for row in run:
            self._add_token(sequence, found.token_ids[row], found.logprobs.get(row))
        num_accepted = len(sequence.token_ids) - num_before - 1
        if num_accepted:
            sequence.num_computed_tokens += num_accepted
            self.metrics.num_generated_tokens += num_accepted
            self.metrics.num_accepted_tokens += num_accepted
        if self._drafter is not None and sequence.finish_reason is None:
            self._drafter.add(sequence, sequence.token_ids[num_before:])

    def _add_token(self, sequence: Sequence, token_id: int, logprobs: TokenLogprobs | None) -> None:
        if self._rules is not None:
            self._rules.append(sequence, token_id, logprobs)
        elif sequence.finish_reason is None:
            sequence.append(token_id, self.setup.eos_token_ids, logprobs)

    def _remove(self, sequences: list[Sequence]) -> None:
        self._scheduler.retire(sequences)
        for sequence in sequences:
            sequence.source = sequence.encoded = None  # memory, though others still refer to it

    def _drain_running(self) -> list[Sequence]:
        self._nan_sequences.clear()
        return self._scheduler.drain_running()

    def _drain(self) -> list[Sequence]:
        return self._scheduler.drain()
