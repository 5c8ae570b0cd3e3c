"""The generate engine: padded batches through ``model.generate``, for models that the in-flight
engine does not support.

A batch runs until its longest sequence is finished; each sequence is answered as soon as it is
finished itself. The Sampler chooses tokens, as a logits processor within ``generate``, so options
mean the same on both engines, and requests with different options share a batch. Requests for beam
search share one with equal options only, and are answered at its end. Which prompts may share a
batch is tried at load (batches.py).

A decoder's batch ends after some steps where others wait, and where its longest row fills the
context; unfinished sequences go on in a later batch, their tokens computed again.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessorList, StoppingCriteriaList

from hf_triton.runtime import log
from hf_triton.runtime.devices.device import trim_heap
from hf_triton.runtime.errors import NO_NUMBERS, EngineError, LoadError, reason
from hf_triton.text_generation.engine.engine import Engine, EngineSetup
from hf_triton.text_generation.engine.generation_rules import GenerationRules, vocab_size
from hf_triton.text_generation.memory.layer_shapes import max_lengths
from hf_triton.text_generation.sampling.random_sampling import load_loops
from hf_triton.text_generation.sampling.sampler import Sampler
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import NO_TOKEN, Sequence

from .batches import Batches, shown_batches

_DEFAULT_NUM_SEQS = 32
TURN = 128  # steps that a batch has while others wait


class GenerateEngine(Engine):
    name = "generate"

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        model, options = setup.model, setup.options
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        longest_source, self.max_model_len = max_lengths(model.config, options.max_model_len)
        self.max_source_len = longest_source if self.is_encoder_decoder else None
        self.max_num_seqs = options.max_num_seqs or _DEFAULT_NUM_SEQS
        self._waiting: deque[Sequence] = deque()
        self._batch: list[Sequence] = []
        self.batches = Batches.PADDED

    def prepare(self) -> None:
        self._rules = GenerationRules(self.setup.model, self.setup.eos_token_ids)
        config = self._rules.config
        if config.exponential_decay_length_penalty is not None:
            name = "exponential_decay_length_penalty"
            log.warn(f"generation_config.json: the generate engine ignores {name}")
            config.exponential_decay_length_penalty = None
        pad = config.pad_token_id
        eos = min(self.setup.eos_token_ids, default=0)
        self._pad_token_id = pad if isinstance(pad, int) and pad >= 0 else eos
        config.pad_token_id = self._pad_token_id
        self._sampler = Sampler(sorted(self.setup.eos_token_ids))
        load_loops(self.setup.device, self.setup.model.dtype)
        self.setup.prepare(self.setup.model)
        try:
            self.batches = shown_batches(self.setup.model, self._pad)
        except LoadError:
            raise
        except Exception as error:
            # An architecture that fails here fails every request: say so now.
            raise LoadError(
                f"the model does not run: {type(error).__name__}: {reason(error)}"
            ) from error
        size = f"{self.max_num_seqs} sequences x {self.max_model_len} tokens"
        self.description = f"generate engine, {self.batches.value} of {size}"

    def _has_work(self) -> bool:
        return bool(self._waiting)

    def _add(self, sequences: Iterable[Sequence]) -> None:
        self._waiting.extend(sequences)
        self._waiting = deque(sorted(self._waiting, key=lambda sequence: sequence.priority))

    @property
    def gauges(self) -> dict[str, int]:
        num_running = sum(sequence.finish_reason is None for sequence in list(self._batch))
        num_waiting = max(0, self.thread.num_unfinished - num_running)
        return {"num_running": num_running, "num_waiting": num_waiting}

    def _remove(self, sequences: list[Sequence]) -> None:
        """Running sequences have ended already: their rows are ignored from now on."""
        gone = set(sequences)
        self._waiting = deque(s for s in self._waiting if s not in gone)

    def _drain_running(self) -> list[Sequence]:
        batch, self._batch = self._batch, []
        return [sequence for sequence in batch if sequence.finish_reason is None]

    def _drain(self) -> list[Sequence]:
        drained = self._drain_running() + list(self._waiting)
        self._waiting.clear()
        return drained

    def _step(self) -> None:
        """Computes one whole batch; each sequence is answered as soon as it is finished."""
        self._batch, self._num_steps = self._next_batch(), 0
        self._begun_s = time.monotonic()
        self.generate_batch(self._batch)
        batch, left = self._batch, self._drain_running()
        goes_on = self._num_steps > 0 and not any(map(_is_held_to_its_batch, left))
        for sequence in batch:
            sequence.source = None  # memory, though others still refer to it
        if goes_on:
            self._add(left)
        elif left:
            self._fail(left, EngineError("generate ended before the sequence did"))
        trim_heap()  # batches of other sizes would leave more and more holes

    def _next_batch(self) -> list[Sequence]:
        batch: list[Sequence] = []
        for sequence in self._waiting:
            if batch and (len(batch) + 1) * batch[0].params.num_beams > self.max_num_seqs:
                break
            if not batch or self._can_join(batch, sequence):
                batch.append(sequence)
        taken = set(map(id, batch))
        self._waiting = deque(s for s in self._waiting if id(s) not in taken)
        return batch

    def _can_join(self, batch: list[Sequence], sequence: Sequence) -> bool:
        searches = batch[0].params.num_beams > 1 or sequence.params.num_beams > 1
        if searches and sequence.params != batch[0].params:
            return False
        if any(one.source is not None and one.continues_prompt for one in (sequence, batch[0])):
            return False
        if self.batches is Batches.EQUAL:
            return _num_read(sequence) == _num_read(batch[0])
        return self.batches is not Batches.ALONE

    @torch.inference_mode()
    def generate_batch(self, batch: list[Sequence]) -> None:
        input_ids, attention_mask = self._pad([_read(sequence) for sequence in batch])
        first, config = batch[0], copy.deepcopy(self._rules.config)
        own = first.source if first.continues_prompt else None  # of a batch of one
        inputs = {} if own is None else own.on(self.setup.device, self.setup.model.dtype)
        if searches := first.params.num_beams > 1:
            config = self._beam_config(first.params)
        else:
            most_steps = max(sequence.num_tokens_left for sequence in batch)
            if not self.is_encoder_decoder:  # all rows stay within the context
                most_steps = min(most_steps, self.max_model_len - max(map(_num_read, batch)))
            config.update(max_new_tokens=most_steps)
        if not first.continues_prompt:
            starts = [sequence.prompt_token_ids[0] for sequence in batch]
            config.update(decoder_start_token_id=starts)
        found = self.setup.model.generate(
            input_ids,
            attention_mask=attention_mask,
            generation_config=config,
            logits_processor=LogitsProcessorList([self._watch if searches else self._choose]),
            stopping_criteria=StoppingCriteriaList([self._ended]),
            **inputs,
        )
        if searches:
            self._take_beams(batch, found.tolist())

    def _choose(self, input_ids: Any, scores: Any) -> Any:
        """A logits processor that samples a token for each row, or takes a forced one, and forbids
        all others: scores (batch, vocab) -> the same shape, 0 at each row's token, -inf elsewhere.
        """
        batch, is_first = self._batch, not self._num_steps
        rows = [row for row, sequence in enumerate(batch) if sequence.finish_reason is None]
        token_ids = [self._pad_token_id] * len(batch)
        sequences = [batch[row] for row in rows]
        sampled = self._sampler.sample(scores[rows], sequences)
        for place, (row, token_id) in enumerate(zip(rows, sampled.token_ids, strict=True)):
            if token_id == NO_TOKEN:
                batch[row].end("error", EngineError(NO_NUMBERS))
                continue
            self._rules.append(batch[row], token_id, sampled.logprobs.get(place))
            token_ids[row] = batch[row].last_token_id
        begun = [s for s in batch if len(s.token_ids) < 2] if is_first else []
        self.metrics.computed(len(sequences), begun, self._begun_s)
        if self.setup.device.type == "cpu" and not is_first:
            self.thread.cpu_threads.computes(len(batch))
        self._publish(sequences)
        self._end_token()
        chosen = torch.full_like(scores, float("-inf"))
        chosen[torch.arange(len(batch)), token_ids] = 0
        return chosen

    def _watch(self, input_ids: Any, scores: Any) -> Any:
        """A logits processor of beam search, whose tokens are known at its end: ends sequences with
        NaN scores, forces first tokens. scores (batch x beams, vocab) -> the same shape.
        """
        batch = self._batch
        if is_first := not self._num_steps:
            self.metrics.computed(len(batch), batch, self._begun_s)
        self._end_token()
        scores = scores.unflatten(0, (len(batch), -1))
        is_nan = scores.amax(dim=-1, keepdim=True).isnan()
        if is_nan.any():
            failed = [one for one, row in zip(batch, is_nan, strict=True) if row.any()]
            self._publish(self._end(failed, "error", EngineError(NO_NUMBERS)))
            scores = scores.masked_fill(is_nan, 0)
        for row, sequence in enumerate(batch if is_first else ()):
            if sequence.forced_token_id is not None:
                scores[row] = float("-inf")
                scores[row, :, sequence.forced_token_id] = 0
        return scores.flatten(0, 1)

    def _end_token(self) -> None:
        """Takes in new, cancelled and overdue sequences between two forwards."""
        self._num_steps += 1
        self.thread.renew_step()
        self.thread.take_in()

    def _ended(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """A stopping criterion that ends each row with its sequence, and all where others wait for
        their turn: input_ids (batch x beams, length) -> (batch x beams,) bool.
        """
        gives_way = self._num_steps >= TURN and bool(self._waiting)
        gives_way = gives_way and not any(map(_is_held_to_its_batch, self._batch))
        done = [gives_way or sequence.finish_reason is not None for sequence in self._batch]
        beams = input_ids.shape[0] // len(self._batch)
        return torch.tensor(done, device=input_ids.device).repeat_interleave(beams)

    def _take_beams(self, batch: list[Sequence], found: list[list[int]]) -> None:
        """Appends all tokens of a search at once; each row begins with the decoder's start."""
        eos_token_ids, outputs = self.setup.eos_token_ids, []
        for sequence, (_, *row) in zip(batch, found, strict=True):
            if sequence.finish_reason is None:
                ends = (place for place, id_ in enumerate(row, 1) if id_ in eos_token_ids)
                outputs.append((sequence, row[: next(ends, len(row))]))  # without padding
        for step in range(max((len(output) for _, output in outputs), default=0)):
            rows = [(sequence, output[step]) for sequence, output in outputs if step < len(output)]
            for sequence, token_id in rows:
                sequence.append(token_id, eos_token_ids)
            if step:
                self.metrics.computed(len(rows), (), self._begun_s)
        self._publish([sequence for sequence, _ in outputs])

    def _beam_config(self, params: SamplingParams) -> Any:
        """The model's own generation config, changed by the options, which are equal in a batch."""
        config = copy.deepcopy(self.setup.model.generation_config)
        config.update(
            do_sample=False,
            num_return_sequences=1,
            temperature=1.0,
            top_k=50,
            top_p=1.0,
            pad_token_id=self._pad_token_id,
            eos_token_id=sorted(self.setup.eos_token_ids) or None,
            num_beams=params.num_beams,
            max_new_tokens=params.max_tokens,
            min_new_tokens=params.min_tokens,
            repetition_penalty=params.repetition_penalty,
        )
        if params.length_penalty is not None:
            config.length_penalty = params.length_penalty
        size = vocab_size(self.setup.model)
        words = [list(ids) for ids in params.bad_token_ids if max(ids) < size]
        if words:
            config.bad_words_ids = [*(config.bad_words_ids or ()), *words]
        return config

    def _pad(self, prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """input_ids and attention_mask (batch, longest): decoders pad on the left, encoders on the
        right.
        """
        side = "right" if self.is_encoder_decoder else "left"
        rows = [torch.tensor(prompt) for prompt in prompts]
        ids, mask = (
            pad_sequence(each, batch_first=True, padding_value=value, padding_side=side)
            for each, value in ((rows, self._pad_token_id), (list(map(torch.ones_like, rows)), 0))
        )
        return ids.to(self.setup.device), mask.to(self.setup.device)


def _is_held_to_its_batch(sequence: Sequence) -> bool:
    """True if its output can't continue in another batch."""
    return sequence.source is not None or not sequence.continues_prompt


def _num_read(sequence: Sequence) -> int:
    return sequence.num_sent_tokens + len(sequence.token_ids)


def _read(sequence: Sequence) -> list[int]:
    """The tokens that the model reads first: the prompt and what was written, or the encoder's
    text.
    """
    if sequence.source is None or sequence.continues_prompt:
        return sequence.prompt_token_ids + sequence.token_ids
    tokens: list[int] = sequence.source.inputs["input_ids"][0].tolist()
    return tokens
