"""The in-flight engine: requests join and leave a running batch at every step (continuous batching,
https://www.usenix.org/conference/osdi22/presentation/yu).

Puts scheduler, runner, cache and sampler together; each of them knows nothing of the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import replace

import torch

from hf_triton.runtime import log
from hf_triton.runtime.devices.device import total_bytes
from hf_triton.runtime.errors import NO_NUMBERS, EngineError, OverloadedError, RequestError
from hf_triton.text_generation.engine.engine import Engine, EngineSetup
from hf_triton.text_generation.engine.generation_rules import GenerationRules, has_rules
from hf_triton.text_generation.engine.scheduler import Scheduler
from hf_triton.text_generation.engine.step import Draft, Step
from hf_triton.text_generation.engine.step_times import StepTimes
from hf_triton.text_generation.forward.paged.graphs import GraphedRunner, with_cuda_graphs
from hf_triton.text_generation.forward.paged.runner import AdaptedPageRunner, PageRunner
from hf_triton.text_generation.forward.transformers.runner import Runner
from hf_triton.text_generation.forward.transformers.step_extras import AdaptedSteps, ExtrasRunner
from hf_triton.text_generation.lora.linear import Adapter, Change
from hf_triton.text_generation.memory.known_prompts import KnownPrompts
from hf_triton.text_generation.memory.paged_cache import PagedSize
from hf_triton.text_generation.sampling.drafter import Drafter, accepted_tokens
from hf_triton.text_generation.sampling.random_sampling import load_loops
from hf_triton.text_generation.sampling.sampler import Sampled, Sampler
from hf_triton.text_generation.sequence.sequence import NO_TOKEN, Sequence, Token
from hf_triton.text_generation.sequence.source import text_source
from hf_triton.text_generation.structured.grammar import tell_all, wait_for_masks

from .drafting import computes_drafts, make_drafter
from .encoding import encode, forget_embeddings
from .plan import plan
from .step_tokens import max_num_batched_tokens, max_num_scored, read_prompt_logprobs
from .warm_up import warm_up

_LOOK_EVERY_S = 0.1  # whether the engine still runs
_LONGEST_WAIT_S = 0.05  # for grammars, which mostly take less than the step


class InFlightEngine(Engine):
    """Generates for many sequences at once, one token each a step; more where drafted ones are
    right.
    """

    name = "in_flight"
    resumes_streams = True
    size: PagedSize
    runner: Runner

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        self._launched: Sampled | None = None  # tokens that are sampled and not read yet
        self._pending_rows: dict[Sequence, int] = {}  # theirs, of those that go on
        self._drafts: list[Draft] = []  # of the step that they are from
        self._doubted: set[Sequence] = set()  # whose scores are no numbers
        self._drafter: Drafter | None = None
        self._rules: GenerationRules | None = None  # the model's own
        most_ms = setup.options.max_step_ms
        self._step_times = StepTimes(None if most_ms is None else most_ms / 1000)
        self._change: Change | None = None  # of adapters, to take up; guarded by the condition
        self._computed: Step | None = None
        self._begun_s = self._settled_s = 0.0  # of the step that is computed, of the one before

    @property
    def max_num_seqs(self) -> int:
        return self.size.max_num_seqs

    @property
    def max_model_len(self) -> int:
        return self.size.max_model_len

    @property
    def max_source_len(self) -> int | None:
        held = self._plan.encoder_decoder
        return None if held is None else held.max_source_len

    def _chunked_prefill(self, *, with_source: bool) -> bool:
        media = self._plan.media
        return self._plan.chunked_prefill and not (with_source and media and not media.cuts_sources)

    @property
    def description(self) -> str:
        drafts = f", {self._drafter.description}" if self._drafter is not None else ""
        sources = f" from sources of {self.max_source_len}" if self.max_source_len else ""
        return (
            f"in_flight engine ({self.runner.name}), {self._storage.description}{sources}, "
            f"KV cache {self.size.gib:.2f} GiB{drafts}"
        )

    def prepare(self) -> None:
        """Sizes the cache, selects the runner, prepares the model's layers.

        Raises:
            UnsupportedModelError: the architecture can't be served by this engine.
            LoadError: the cache does not fit.
        """
        setup = self.setup
        self._plan = plan(setup)
        self._storage, self.size = self._plan.storage, self._plan.storage.size
        self._vocab_size = int(setup.model.config.get_text_config().vocab_size)
        cache = self._storage.new_cache()
        runner = self._plan.make_runner(setup.model, cache, setup.device)
        self._takes_snapshots = runner.takes_snapshots
        self._drafter = make_drafter(setup, runner, self.size.max_num_seqs, self._step_times)
        self._sampler = Sampler(sorted(setup.eos_token_ids), runner.argmax)
        load_loops(setup.device, setup.model.dtype)
        if isinstance(runner, ExtrasRunner):
            runner.plain = self._with_graphs(runner.plain)
            self.runner = runner
        else:
            self.runner = self._with_graphs(runner)
        if setup.adapters is not None:
            adapted, on_device = runner, False
            if isinstance(runner, PageRunner) and not setup.runs_compiled:
                on_device = True
                adapted = self._with_graphs(AdaptedPageRunner(runner, setup.adapters))
            extras = AdaptedSteps(setup.adapters, setup.device, on_device=on_device)
            name = f"{self.runner.name}, adapters"
            self.runner = ExtrasRunner(self.runner, adapted, extras)
            self.runner.name = name
        self._use_new_space(shares=False)
        self._warm_up()
        if self._rules is not None:
            self._drafter = None  # they look at tokens that are known
        if self._drafter is not None and not computes_drafts(
            self._scheduler, self._space, self.runner, self._vocab_size
        ):
            self._drafter = None
        shares = setup.options.prefix_cache and self._plan.chunked_prefill
        shares = shares and not runner.computes_answers_otherwise
        self._use_new_space(shares=shares)

    def _warm_up(self) -> None:
        held = self._plan.encoder_decoder
        sources, model = self.setup.sources, self.setup.model
        if held is not None or has_rules(model):
            self._rules = GenerationRules(model, self.setup.eos_token_ids)
        if held is not None:
            longest = held.max_source_len or 0
            sources = sources or tuple(text_source([0] * min(n, longest)) for n in (3, 16))
        warm_up(self._scheduler, self.runner, self._sampler, sources)

    @property
    def _max_num_batched_tokens(self) -> int:
        setup = self.setup
        return max_num_batched_tokens(setup.options, setup.device, total_bytes, self.max_num_seqs)

    def _with_graphs(self, runner: Runner) -> Runner:
        return with_cuda_graphs(runner, self.setup.device)

    def _use_new_space(self, *, shares: bool) -> None:
        self._shares, self._known = shares, KnownPrompts()
        self._space = self._storage.new_space(shares=shares, snapshots=self._takes_snapshots)
        num_tokens = self._max_num_batched_tokens
        media = self._plan.media
        self._scheduler = Scheduler(
            self.size.max_num_seqs,
            num_tokens,
            self._space,
            chunked_prefill=self._plan.chunked_prefill,
            cuts_sources=media is None or media.cuts_sources,
            max_num_scored=max_num_scored(self._vocab_size),
            prompt_limit=self._prompt_limit,
        )

    def _prompt_limit(self, decodes: list[Sequence]) -> int:
        """How many tokens of prompts to compute beside these: where some are streamed, so few that
        those come at an even pace.
        """
        found = None
        if any(sequence.recipient.streams for sequence in decodes):
            num_prompts = self._scheduler.num_prompts
            found = self._step_times.most_prompt_tokens(len(decodes), num_prompts)
        return self._max_num_batched_tokens if found is None else found

    @property
    def drafts(self) -> bool:
        """Whether it computes tokens that may come next."""
        return self._drafter is not None

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
        known = self._scheduler.has_work or self._launched is not None
        return known or self._change is not None

    def change_adapters(self, adapters: Items[Adapter]) -> None:
        """Serves these from the next step on, and waits for that; sequences that it has go on with
        the adapters that they began with. Called by one other thread.

        Raises:
            LoadError: one changes a layer that had to be known when the model was loaded.
            OverloadedError: the engine stops, or is stuck; nothing is changed.
        """
        held = self.setup.adapters
        assert held is not None
        change = held.change_to(adapters, {one.adapter_key for one in self.thread.unfinished()})
        with self.thread.condition:
            self._change = change
            self.thread.wake()
        try:
            while not change.taken.wait(_LOOK_EVERY_S):
                self.thread.check_running()
        except OverloadedError:
            with self.thread.condition:
                self._change = None  # else an engine that gets on later would take it up
                if not change.taken.is_set():
                    raise

    def forget_removed_adapters(self) -> None:
        """Frees those that no sequence needs any more; called as ``change_adapters`` is."""
        held = self.setup.adapters
        if held is not None and held.removed:
            used = {one.adapter_key for one in self.thread.unfinished()}
            if not held.removed <= used:
                self.change_adapters(tuple(held.current.values()))

    def _take_up_change(self) -> None:
        with self.thread.condition:
            change, self._change = self._change, None
            if change is None or self.setup.adapters is None:
                return
            self.setup.adapters.take_up(change)
        if not (change.matrices and isinstance(self.runner, ExtrasRunner)):
            return
        if isinstance(self.runner.inner, GraphedRunner):
            # Its graphs have the old weights. Capturing others would write over pages in use.
            self.runner.inner = self.runner.inner.inner
            log.info("steps with adapters run without CUDA graphs until the model is loaded anew")

    def _choose_adapters(self, sequences: Iterable[Sequence]) -> None:
        """Gives each sequence the adapter that its name stands for now. One that was removed since
        its request was read fails it.
        """
        if self.setup.adapters is None:
            return
        current = self.setup.adapters.current
        for sequence in sequences:
            if sequence.lora_name in current:
                sequence.adapter_key = current[sequence.lora_name].key
            elif sequence.lora_name is not None:
                sequence.end("error", RequestError("lora_name: this adapter has been removed"))

    def _add(self, sequences: Iterable[Sequence]) -> None:
        if self._change is not None:
            self._take_up_change()
        self._choose_adapters(sequences)
        self._publish([one for one in sequences if one.finish_reason is not None])
        media = self._plan.media
        for sequence in sequences if media is not None and not media.shares else ():
            if sequence.source is not None:
                sequence.source = replace(sequence.source, cache_token_ids=None)
        for sequence in sequences:
            if sequence.begins_with:
                self._resume(sequence)
        going = [sequence for sequence in sequences if sequence.finish_reason is None]
        for sequence in going if self._shares else ():
            self._known.fill(sequence)
        self._scheduler.add(going)

    def _resume(self, sequence: Sequence) -> None:
        """Goes on with an output whose beginning another process has generated."""
        sequence.first_token_s = sequence.submitted_s
        for token_ids in filter(None, sequence.begins_with):
            for token_id in token_ids:
                self._append_one(sequence, Token(token_id))
            self._publish([sequence])
        sequence.preempt()

    def _step(self) -> None:
        """Computes a step. Where it runs ahead, the device has the forward of this step to compute
        while the host reads the tokens of the step before and sends them; all that depends on them
        (ends, grammars, cancellation) comes one step late, and nothing else changes. A draft
        continues the last token: a step that may draft waits for that.
        """
        begun_s = time.perf_counter()
        drafter = self._drafter
        if drafter is not None and self._launched and drafter.wants(self._scheduler.running):
            self._settle()
        step = self._scheduler.schedule()
        self.metrics.num_preempted = self._scheduler.num_preempted
        failed: dict[Sequence, EngineError] = {}
        if step.num_tokens:
            step, failed = self._encoded(step)
        if drafter is not None and self._launched is None:
            drafter.draft(step, self._space.append)
        if step.num_tokens:
            step.inputs.pending_rows = self._pending_rows
            if self._launched is not None:
                step.inputs.pending_tokens = self._launched.token_ids
            if self.setup.device.type == "cpu":
                self.thread.cpu_threads.computes(step.num_tokens)
            logits = self.runner.compute(step)
            forget_embeddings(step)
            if len(logits) > len(step.rows):
                complete, doubted = read_prompt_logprobs(step, logits[len(step.rows) :])
                self._know(complete)
                self._doubted.update(doubted)
                logits = logits[: len(step.rows)]
            if self._rules is not None:
                logits = self._rules.apply(logits, step.sampled)
            self._settle()
            self._sample(step, logits)
            self._begun_s, self._computed = begun_s, step
        if step.drafts or failed or not (self._plan.async_scheduling and step.num_tokens):
            self._settle()
        self._end_prompts(step)
        for sequence, error in failed.items():
            self._scheduler.discard(self._forgotten([sequence]))
            self._fail([sequence], error)
        if self._doubted:
            self._end_doubted()

    def _end_doubted(self) -> None:
        """Fails those whose scores are no numbers. Other tokens than its own may have made them so,
        for what is masked counts where it is NaN: those that came behind a prefix which another
        computed, or a draft's. Then it is computed again, all by itself.
        """
        doubted = [one for one in self._doubted if one.finish_reason is None]
        self._doubted.clear()
        again = [
            one for one in doubted if not one.is_alone and (one.num_reused_tokens or self._drafter)
        ]
        self._scheduler.restart(again)
        ended = [one for one in doubted if one not in again]
        for sequence in ended:
            sequence.end("error", EngineError(NO_NUMBERS))
        self._publish(ended)
        self._scheduler.expel(self._forgotten(ended))

    def _know(self, complete: list[Sequence]) -> None:
        """These have all of their prompts' log-probabilities: who waits may need fewer."""
        if complete and self._shares:
            for sequence in complete:
                self._known.add(sequence)
            for sequence in self._scheduler.waiting:
                self._known.fill(sequence)

    def _end_prompts(self, step: Step) -> None:
        """Takes out the sequences of which nothing is wanted but what is known of their prompts."""
        ended = [c.sequence for c in step.prefills if c.is_end and not c.is_last]
        ended = [sequence for sequence in ended if sequence not in self._doubted]
        if ended:
            for sequence in ended:
                sequence.end("length")
            self._publish(ended)
            self._remove(ended)

    def _encoded(self, step: Step) -> tuple[Step, dict[Sequence, EngineError]]:
        """The step with what encoders compute for the sequences that it begins, and without those
        that they fail.
        """
        media = self._plan.media
        return (step, {}) if media is None else encode(step, media.entry)

    def _sample(self, step: Step, logits: torch.Tensor) -> None:
        """Launches the sampling of a step's tokens."""
        sampled = step.sampled
        late = self._late(sampled)
        started = [chunk.sequence for chunk in step.prefills if chunk.is_first]
        self.metrics.computed(len(sampled) - len(late), started)
        for sequence in late:
            sequence.num_computed_tokens -= 1
        if len(late) == len(sampled):
            return
        self._launched = self._sampler.launch(logits, step.rows, late)
        self._drafts = step.drafts
        left_out = late | self._doubted
        for row, sequence in enumerate(sampled):
            if sequence.finish_reason is not None:  # it ended while its step was computed
                self._sampler.forget(sequence)
            elif sequence not in left_out:
                sequence.num_pending = 1
                self._pending_rows[sequence] = row

    def _late(self, sampled: list[Sequence]) -> set[Sequence]:
        """Those whose grammar takes long to say what may come next. Their last token is computed
        again in the next step, so that nobody waits for them. A state can't take a token twice:
        there everybody waits, in the sampler.
        """
        if self._plan.keeps_states:
            return set()
        grammars = [s.grammar for s in sampled if s.grammar is not None]
        if not grammars or wait_for_masks(grammars, _LONGEST_WAIT_S):
            return set()
        return {s for s in sampled if s.grammar is not None and not s.grammar.is_ready}

    def _settle(self) -> None:
        """Reads the tokens that were sampled, hands them on and takes out what they end."""
        launched, self._launched = self._launched, None
        if launched is None:
            return
        read = launched.read()
        self._note_time()
        runs = accepted_tokens(launched.sequences, read, self._drafts)
        news = [(sequence, runs[sequence]) for sequence in self._pending_rows]
        self._pending_rows = {}
        for sequence, run in news:
            sequence.num_pending = 0
            if run[0].id == NO_TOKEN:
                self._doubted.add(sequence)
        going = [
            (sequence, run)
            for sequence, run in news
            if sequence.finish_reason is None and sequence not in self._doubted
        ]
        tell_all(
            (sequence.grammar, run[0].id)
            for sequence, run in going
            if self._rules is None or self._rules.next_of(sequence) is None
        )
        for sequence, run in going:
            self._append(sequence, run)
        sequences = [sequence for sequence, _ in going]
        self.metrics.num_draft_tokens += sum(len(draft.token_ids) for draft in self._drafts)
        self._drafts = []
        self._publish(sequences)
        self._remove([sequence for sequence in sequences if sequence.finish_reason is not None])

    def _note_time(self) -> None:
        """The tokens of the step that was begun last are read now. Where it was begun before those
        of the step before were read, it had to wait for that one.
        """
        step, now = self._computed, time.perf_counter()
        seconds = now - max(self._begun_s, self._settled_s)
        self._settled_s = now
        if step is not None and not step.drafts:
            num_decodes = len(step.decodes)
            self._step_times.note(num_decodes, step.num_tokens - num_decodes, seconds)

    def _append(self, sequence: Sequence, run: list[Token]) -> None:
        """Adds tokens up to the one that ends the sequence. Keys and values of all before the last
        are computed: those of drafted tokens that were wrong lie behind them, and are written over.
        """
        num_before = len(sequence.token_ids)
        for token in run:
            self._append_one(sequence, token)
        num_accepted = len(sequence.token_ids) - num_before - 1
        if num_accepted:
            sequence.num_computed_tokens += num_accepted
            self.metrics.num_generated_tokens += num_accepted
            self.metrics.num_accepted_tokens += num_accepted
        if self._drafter is not None and sequence.finish_reason is None:
            self._drafter.add(sequence, run)

    def _append_one(self, sequence: Sequence, token: Token) -> None:
        if self._rules is not None:
            self._rules.append(sequence, token, self.setup.eos_token_ids)
        elif sequence.finish_reason is None:
            sequence.append(token, self.setup.eos_token_ids)

    def _remove(self, sequences: list[Sequence]) -> None:
        self._scheduler.retire(self._forgotten(sequences))
        for sequence in sequences:
            sequence.source = sequence.encoded = None  # memory, though others still refer to it

    def _drain_running(self) -> list[Sequence]:
        self._launched = None
        self._doubted.clear()
        for sequence in self._pending_rows:
            sequence.lose_pending()
        self._pending_rows = {}
        return self._forgotten(self._scheduler.drain_running())

    def _drain(self) -> list[Sequence]:
        return self._forgotten(self._scheduler.drain())

    def _forgotten(self, sequences: list[Sequence]) -> list[Sequence]:
        for sequence in sequences:
            self._sampler.forget(sequence)
            if self._drafter is not None:
                self._drafter.forget(sequence)
            if self._rules is not None:
                self._rules.forget(sequence)
        return sequences
