"""Takes requests in and follows them until they are answered.

Requests come from Triton's ``execute`` and from fronts; here they are all alike. Knows the engine
only as a place to submit sequences to and to cancel them at, and to start and stop.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from hf_triton.runtime.errors import RequestError, RuntimeModelError
from hf_triton.runtime.metrics.publishing import Family
from hf_triton.runtime.request.abandoned_requests import Call, call_in
from hf_triton.runtime.request.cancellation import CancellationWatch
from hf_triton.runtime.request.file_threads import Begin, FileThreads, Reading
from hf_triton.runtime.request.json_text import written
from hf_triton.runtime.request.plain_request import RequestLike
from hf_triton.runtime.request.responder import Responder, answer_failure, strings
from hf_triton.runtime.request.stream_journal import StreamJournal, refuse_to_go_on
from hf_triton.runtime.request.tensors import RequestFields
from hf_triton.runtime.tokenizing.lengths import give_memory_back

from .loading import LoadedModel
from .request.answer import Answer, Choice, described, wanted_outputs
from .request.limits import check_logprobs
from .request.parsing import CheckedRequest, Generation, GenerationRequest, check_request
from .request.source_memory import SourceMemory
from .request.tokenizer_questions import Question, TokenizerDesk
from .sampling.sampler import choice_seed
from .sequence.detokenizer import Detokenizer
from .sequence.sampling_params import SamplingParams
from .sequence.sequence import Sequence
from .structured.compiling import Started

_MOST_TOKEN_TEXTS = 2**16  # that are kept
_READ_AT_ONCE = 8192  # characters: a few milliseconds, at the slowest 20
_SEED_BITS = 63
_LOGPROBS = frozenset(("logprobs", "cumulative_logprob"))


class Reception:
    """The open requests of one engine."""

    def __init__(self, loaded: LoadedModel, *, batched: bool) -> None:
        """``batched`` where max_batch_size is above 0."""
        self.loaded, self.tokenizer = loaded, loaded.tokenizer
        self.description, self.unload_grace_s = loaded.description, loaded.unload_grace_s
        self._engine = loaded.engine
        self._batched = batched
        self._tokenizer = TokenizerDesk(
            loaded.tokenizer, loaded.reader, loaded.engine.max_model_len
        )
        self._texts, self._files = FileThreads(2, "texts"), FileThreads()
        self._source_memory = SourceMemory.of_free()
        # With the bytes of its sources; changed one key at a time, which is atomic.
        self._open: dict[Answer, int] = {}
        self._described = lru_cache(_MOST_TOKEN_TEXTS)(partial(described, loaded.tokenizer))
        self._watch = CancellationWatch(self._ask_all, lambda: self._engine.thread.last_step_s)

    @property
    def is_healthy(self) -> bool:
        """Whether the engine takes requests and gets on with them."""
        return self._engine.is_healthy

    def families(self) -> Iterable[Family]:
        """What the engine counts and holds."""
        return self._engine.families()

    def take(
        self, request: RequestLike, listed: Iterable[str], responder: Responder, *, may_stream: bool
    ) -> None:
        """Starts one request, or answers it with what is wrong with it; never raises.

        ``listed`` are the outputs that the request names; ``may_stream`` is False where its caller
        can be answered only once.
        """
        arrived_s = time.monotonic()
        try:
            call = call_in(request.parameters())
            if call is not None:
                arrived_s -= call.waited_ms / 1000
            fields = RequestFields(request, batched=self._batched)
            question = self._tokenizer.question(fields)
            if question is not None:
                tell = partial(self._told, question, frozenset(listed), responder)
                self._read_soon(question.num_characters, Reading(responder), tell, responder)
                return
            checked = check_request(fields, self.loaded.reader)
            # Clients of TensorRT-LLM, which alone know this input, read its flat outputs.
            batched = self._batched and not fields.has_tensor("beam_width")
            start = partial(
                self._start, listed, responder, call, arrived_s=arrived_s, batched=batched
            )
            timeout_ms = checked.timeout_ms
            deadline_s = None if timeout_ms is None else arrived_s + timeout_ms / 1000
            read = partial(self._read, checked, responder, start, deadline_s, may_stream=may_stream)
            reading = Reading(responder, deadline_s)
            self._read_soon(checked.num_characters, reading, read, responder)
        except BaseException as error:
            answer_failure(responder, error)

    def _read_soon(
        self, num_characters: int, reading: Reading, read: Callable[[], Begin], responder: Responder
    ) -> None:
        """Calls ``read`` and what it returns: at once for a short text, else on another thread."""
        if num_characters <= _READ_AT_ONCE:
            read()()
            return

        def read_long() -> Begin:
            try:
                return read()
            finally:
                give_memory_back(num_characters)

        self._texts.run(reading, num_characters, read_long, partial(answer_failure, responder))

    def _told(self, question: Question, listed: frozenset[str], responder: Responder) -> Begin:
        """What answers as a generation without a token would be answered."""
        told = question.answer()
        outputs = {
            "text_output": strings([written(told)]),
            "finish_reason": strings(["stop"]),
            "num_input_tokens": np.array([told.get("count", 0)], dtype=np.uint32),
            "num_output_tokens": np.array([0], dtype=np.uint32),
        }
        shape = (1, 1) if self._batched else (1,)
        found = {name: one.reshape(shape) for name, one in outputs.items() if name in listed}
        return partial(responder.send, found, final=True)

    def _read(
        self,
        checked: CheckedRequest,
        responder: Responder,
        start: Callable[..., None],
        deadline_s: float | None,
        *,
        may_stream: bool,
    ) -> Begin:
        """Makes tokens of texts; returns what has grammars made of constraints and then starts, or
        waits for threads that decode files before that.
        """
        checked, num_bytes = checked.with_files()
        go_on = partial(self._constrain, responder, start, may_stream=may_stream)
        if not num_bytes:
            return partial(go_on, checked.tokenised())
        return partial(
            self._files.run,
            Reading(responder, deadline_s),
            num_bytes,
            lambda: partial(go_on, checked.tokenised()),
            partial(answer_failure, responder),
        )

    def _constrain(
        self,
        responder: Responder,
        start: Callable[..., None],
        request: GenerationRequest,
        *,
        may_stream: bool,
    ) -> None:
        start = partial(start, request, streams=request.stream and may_stream)
        if request.constraints:
            fail = partial(answer_failure, responder)
            begin = partial(_guarded, responder, start)
            self.loaded.compiler.when_ready(request.constraints, begin, fail)
        else:
            start({})

    def stop(self, grace_s: float) -> None:
        """Takes no more, finishes what is here within ``grace_s``, answers the rest, and ends every
        thread.
        """
        self._engine.stop(grace_s)
        self._files.shutdown()
        self._texts.shutdown()
        self._watch.close()
        self.loaded.compiler.close()

    def _start(
        self,
        listed: Iterable[str],
        responder: Responder,
        call: Call | None,
        request: GenerationRequest,
        grammars: Started,
        *,
        arrived_s: float,
        streams: bool,
        batched: bool,
    ) -> None:
        wanted = wanted_outputs(listed, request.outputs)
        journal, rows = self._journaled(call if streams else None, request.rows)
        answer = Answer(
            responder,
            [[self._choice(row) for _ in range(row.n)] for row in rows],
            wanted,
            self._described,
            streams=streams,
            batched=batched,
            journal=journal,
        )
        with_logprobs = not wanted.isdisjoint(_LOGPROBS)
        if with_logprobs and any(row.params.num_beams > 1 for row in rows):
            raise RequestError("logprobs: beams have none; send beam_width 1 for them")
        with_prompt_logprobs = "prompt_logprobs" in wanted
        for row in rows:
            if with_prompt_logprobs or row.params.num_prompt_logprobs is not None:
                num_tokens, has_source = len(row.prompt_token_ids), row.source is not None
                self._engine.check_prompt_logprobs(num_tokens, with_source=has_source)
        sequence = partial(
            self._sequence,
            answer=answer,
            grammars=grammars,
            arrived_s=arrived_s,
            with_logprobs=with_logprobs,
            with_prompt_logprobs=with_prompt_logprobs,
        )
        sequences = [sequence(row, index) for row in rows for index in range(row.n)]
        check_logprobs(sequences)
        answer.expect(sequences, self._closed)
        num_bytes = sum(row.source.num_bytes for row in rows if row.source is not None)
        self._source_memory.take(num_bytes)
        self._open[answer] = num_bytes
        try:
            self._engine.submit(answer.sequences)
        except RuntimeModelError:
            self._source_memory.give(self._open.pop(answer, 0))
            raise
        self._watch.wake()

    def _journaled(
        self, call: Call | None, rows: list[Generation]
    ) -> tuple[StreamJournal | None, list[Generation]]:
        """The journal of a stream that can go on in another process, and its rows: where tokens are
        drawn at random, with a seed that the journal says. Raises OverloadedError where the caller
        has the beginning of what can't go on.
        """
        if call is None or not self._engine.resumes_streams:
            refuse_to_go_on(call)
            return None, rows
        seeds = [_seed(row.params) for row in rows]
        journal = StreamJournal.open(call, self.loaded.name, self.loaded.source, seeds)
        if journal is None:
            return None, rows
        return journal, [
            row if row.params.seed == seed else replace(row, params=replace(row.params, seed=seed))
            for row, seed in zip(rows, journal.seeds, strict=True)
        ]

    def _sequence(
        self,
        row: Generation,
        index: int,
        *,
        answer: Answer,
        grammars: Started,
        arrived_s: float,
        with_logprobs: bool,
        with_prompt_logprobs: bool,
    ) -> Sequence:
        """The sequence of one choice of a row; the first tells of the prompt."""
        params = replace(row.params, seed=choice_seed(row.params.seed, index))
        if with_prompt_logprobs and params.num_prompt_logprobs is None:
            params = replace(params, num_prompt_logprobs=0)
        if index and params.max_tokens:
            params = replace(params, num_prompt_logprobs=None)
        if with_logprobs and params.num_logprobs is None:
            params = replace(params, num_logprobs=0)
        continues = not self.loaded.is_encoder_decoder
        detokenizer = Detokenizer(
            self.loaded.tokenizer,
            row.prompt_token_ids if continues else [],
            params.stop_words,
            include_stop_word=params.include_stop_word,
            kept_token_ids=row.kept_token_ids,
            shows_special_tokens=not row.skip_special_tokens,
        )
        held = None if params.constraint is None else grammars.get(params.constraint)
        start = row.decoder_start
        return Sequence(
            row.prompt_token_ids if start is None else [start.token_id],
            params,
            answer,
            detokenizer,
            continues_prompt=continues,
            forced_token_id=None if start is None else start.forced_token_id,
            lora_name=row.lora_name,
            cache_salt=row.cache_salt,
            priority=row.priority,
            deadline_s=None if row.timeout_ms is None else arrived_s + row.timeout_ms / 1000,
            fails_on_timeout=row.on_timeout == "error",
            grammar=None if held is None else held(),
            source=row.source,
        )

    def _closed(self, answer: Answer, _: Exception | None) -> None:
        """Forgets an answered request; what it still generates is for nobody."""
        if answer.journal:
            answer.journal.close()
        self._source_memory.give(self._open.pop(answer, 0))
        unfinished = [s for s in answer.sequences if s.finish_reason is None]
        if unfinished:
            self._engine.cancel(unfinished)

    def _ask_all(self) -> int:
        """Cancels the sequences of callers that have left; returns how many are open."""
        answers = list(self._open)
        for answer in answers:
            if not answer.is_closed and answer.is_cancelled():
                self._engine.cancel(answer.sequences)
        return len(answers)

    def _choice(self, row: Generation) -> Choice:
        text = "" if row.exclude_input else row.text or self._decode(row.prompt_token_ids)
        chat_format = "" if row.chat_format is None else row.chat_format.to_json()
        counted = None if row.reasoning_tokens is None else replace(row.reasoning_tokens)
        return Choice(text, len(row.prompt_token_ids), chat_format, counted)

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self.loaded.tokenizer.decode(
            token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text


def _seed(params: SamplingParams) -> int | None:
    """The request's, or one at random where it has none and draws."""
    if params.is_greedy or params.seed is not None:
        return params.seed
    return secrets.randbits(_SEED_BITS)


def _guarded(responder: Responder, start: Callable[[Started], None], grammars: Started) -> None:
    try:
        start(grammars)
    except BaseException as error:
        answer_failure(responder, error)
