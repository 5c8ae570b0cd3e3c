"""Receives requests, from Triton's ``execute`` and from fronts alike, and follows them until they
are answered. Knows the engine only as a place to submit and cancel sequences.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from hf_triton.runtime.devices.device import trim_heap
from hf_triton.runtime.metrics.publishing import Family
from hf_triton.runtime.request.file_threads import Begin, FileThreads, Reading
from hf_triton.runtime.request.json_text import written
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.request.request_parameters import Call
from hf_triton.runtime.request.responder import answer_failure, attempt, strings
from hf_triton.runtime.request.stream_journal import StreamJournal, refuse_to_go_on
from hf_triton.runtime.request.tensors import RequestFields

from .generation_loading import LoadedModel
from .request.answer import Answer, Choice, described
from .request.open_answers import OpenAnswers
from .request.parsing import (
    CheckedRequest,
    Generation,
    GenerationRequest,
    check_logprobs,
    check_request,
)
from .request.tokenizer_questions import Find, TokenizerDesk
from .sampling.sampler import choice_seed
from .sequence.detokenizer import Detokenizer
from .sequence.sequence import Sequence
from .structured.compiling import Started

_MOST_TOKEN_TEXTS = 2**16  # that are kept
_READ_AT_ONCE = 8192  # characters: a few milliseconds, at the slowest 20
_SEED_BITS = 63
_MUCH = 2**18  # characters whose tokenising leaves much freed: 550 MB after 4 million


@dataclass(frozen=True)
class _Arrived:
    """A request until its sequences are submitted, without its inputs."""

    request: Request
    arrived_s: float
    batched: bool
    deadline_s: float | None = None

    @property
    def reading(self) -> Reading:
        return Reading(self.request.responder, self.deadline_s, self.request.call)


class Reception:
    def __init__(self, loaded: LoadedModel, *, batched: bool) -> None:
        """``batched`` where max_batch_size is above 0."""
        self.loaded, self.tokenizer = loaded, loaded.parts.tokenizer
        self._engine, self._batched, self._compiler = loaded.engine, batched, loaded.compiler
        self.description = loaded.description
        self.unload_grace_s = loaded.engine.setup.options.unload_grace_s
        self._tokenizer = TokenizerDesk(self.tokenizer, loaded.reader, self._engine.max_model_len)
        self._texts, self._files = FileThreads(2, "texts"), FileThreads()
        self._open = OpenAnswers(self._engine)
        self._described = lru_cache(_MOST_TOKEN_TEXTS)(partial(described, self.tokenizer))

    @property
    def is_healthy(self) -> bool:
        return self._engine.is_healthy

    def families(self) -> Iterable[Family]:
        return self._engine.families()

    def take(self, request: Request) -> None:
        """Starts one request. Raises what is wrong with it."""
        waited_ms = 0 if request.call is None else request.call.waited_ms
        arrived_s = time.monotonic() - waited_ms / 1000
        fields = RequestFields(request.inputs, request.parameters, batched=self._batched)
        # Clients of TensorRT-LLM, which alone know this input, read its flat outputs.
        batched = self._batched and "beam_width" not in fields.inputs
        asked = _Arrived(replace(request, inputs={}, parameters={}), arrived_s, batched)
        question = self._tokenizer.question(fields)
        if question is not None:
            num_characters, find = question
            self._read_soon(num_characters, asked, partial(self._answer_question, find, asked))
            return
        checked = check_request(fields, self.loaded.reader, request.outputs)
        if checked.timeout_ms is not None:
            asked = replace(asked, deadline_s=arrived_s + checked.timeout_ms / 1000)
        self._read_soon(checked.num_characters, asked, partial(self._read, checked, asked))

    def stop(self, grace_s: float) -> None:
        """Finishes what is here within ``grace_s``, answers the rest, and ends every thread."""
        self._engine.stop(grace_s)
        self._files.shutdown()
        self._texts.shutdown()
        self._open.stop()
        self._compiler.close()

    def _read_soon(self, num_characters: int, asked: _Arrived, read: Callable[[], Begin]) -> None:
        """Calls ``read`` and what it returns: at once for a short text, else on another thread."""
        if num_characters <= _READ_AT_ONCE:
            read()()
            return

        def read_long() -> Begin:
            try:
                return read()
            finally:
                if num_characters >= _MUCH:
                    trim_heap()

        self._texts.run(asked.reading, num_characters, read_long)

    def _read_files(self, num_bytes: int, asked: _Arrived, read: Callable[[], Begin]) -> Begin:
        """Returns the next stage of a request, on threads that decode files if it has any."""
        if not num_bytes:
            return read()
        return partial(self._files.run, asked.reading, num_bytes, read)

    def _answer_question(self, find: Find, asked: _Arrived) -> Begin:
        """Answers as a generation without a token would be answered."""

        def read() -> Begin:
            told = answer()
            outputs = {
                "text_output": strings([written(told)]),
                "finish_reason": strings(["stop"]),
                "num_input_tokens": np.array([told.get("count", 0)], dtype=np.uint32),
                "num_output_tokens": np.array([0], dtype=np.uint32),
            }
            shape, listed = (1, 1) if self._batched else (1,), asked.request.outputs
            found = {n: one.reshape(shape) for n, one in outputs.items() if n in listed}
            return partial(asked.request.responder.send, found, final=True)

        num_bytes, answer = find()
        return self._read_files(num_bytes, asked, read)

    def _read(self, checked: CheckedRequest, asked: _Arrived) -> Begin:
        """Makes tokens of texts; returns what goes on with the request."""
        checked, num_bytes = checked.with_files()

        def read() -> Begin:
            return partial(self._constrain, checked.tokenised(), asked)

        return self._read_files(num_bytes, asked, read)

    def _constrain(self, request: GenerationRequest, asked: _Arrived) -> None:
        """Starts the request when the grammars of its constraints are made."""
        responder = asked.request.responder
        start = partial(attempt, responder, self._start, request, asked)
        if request.constraints:
            fail = partial(answer_failure, responder)
            self._compiler.when_ready(request.constraints, start, fail)
        else:
            start({})

    def _start(self, request: GenerationRequest, asked: _Arrived, grammars: Started) -> None:
        arrived, wanted = asked.request, request.outputs
        streams = request.stream and arrived.may_stream
        journal, rows = self._journaled(arrived.call if streams else None, request.rows)
        answer = Answer(
            arrived.responder,
            [[self._choice(row) for _ in range(row.options["n"])] for row in rows],
            wanted,
            self._described,
            streams=streams,
            batched=asked.batched,
            journal=journal,
            call=arrived.call,
        )
        for row in rows:
            if row.params.num_prompt_logprobs is not None:
                self._engine.check_prompt_logprobs(with_source=row.prompt.source is not None)
        sequences = [
            self._sequence(row, index, answer, grammars, asked.arrived_s)
            for row in rows
            for index in range(row.options["n"])
        ]
        check_logprobs(sequences)
        answer.expect(sequences, self._closed)
        sources = (row.prompt.source for row in rows if row.prompt.source is not None)
        self._open.submit(answer, sum(source.num_bytes for source in sources))

    def _journaled(
        self, call: Call | None, rows: list[Generation]
    ) -> tuple[StreamJournal | None, list[Generation]]:
        """The journal of a stream that another process can continue, and its rows, with the seeds
        of the journal where tokens are drawn. Raises OverloadedError where the caller has the
        beginning of a stream that can't be continued.
        """
        if call is None or not self._engine.resumes_streams:
            refuse_to_go_on(call)
            return None, rows
        seeds = [
            row.params.seed
            if row.params.is_greedy or row.params.seed is not None
            else secrets.randbits(_SEED_BITS)
            for row in rows
        ]
        served = self.loaded.served
        journal = StreamJournal.open(call, served.name, served.source, seeds)
        if journal is None:
            return None, rows
        return journal, [
            replace(row, params=replace(row.params, seed=seed))
            for row, seed in zip(rows, journal.seeds, strict=True)
        ]

    def _sequence(
        self,
        row: Generation,
        index: int,
        answer: Answer,
        grammars: Started,
        arrived_s: float,
    ) -> Sequence:
        """The sequence of a choice; the first has the prompt's log-probabilities."""
        asked, timeout_ms = row.options, row.options["timeout_ms"]
        params = replace(row.params, seed=choice_seed(row.params.seed, index))
        if index and params.max_tokens:
            params = replace(params, num_prompt_logprobs=None)
        continues = not self.loaded.parts.config.is_encoder_decoder
        detokenizer = Detokenizer(
            self.tokenizer,
            row.prompt.token_ids if continues else [],
            params.stop_words,
            include_stop_word=params.include_stop_word,
            kept_token_ids=row.kept_token_ids,
            shows_special_tokens=not asked["skip_special_tokens"],
        )
        grammar = None if params.constraint is None else grammars.get(params.constraint)
        start = row.prompt.decoder_start
        return Sequence(
            row.prompt.token_ids if start is None else [start.token_id],
            params,
            answer,
            detokenizer,
            continues_prompt=continues,
            forced_token_id=None if start is None else start.forced_token_id,
            lora_name=asked["lora_name"] or None,
            cache_salt=asked["cache_salt"],
            priority=asked["priority"],
            deadline_s=None if timeout_ms is None else arrived_s + timeout_ms / 1000,
            fails_on_timeout=asked["on_timeout"] == "error",
            grammar=None if grammar is None else grammar(),
            source=row.prompt.source,
        )

    def _choice(self, row: Generation) -> Choice:
        text = ""
        if not row.options["exclude_input_in_output"]:
            text = row.prompt.text or self.tokenizer.decode(
                row.prompt.token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        chat_format = "" if row.chat_format is None else row.chat_format.to_json()
        reasoning = None if row.reasoning_tokens is None else replace(row.reasoning_tokens)
        return Choice(text, row.prompt.token_ids, chat_format, reasoning)

    def _closed(self, answer: Answer, _: Exception | None) -> None:
        if answer.journal:
            answer.journal.close()
        self._open.closed(answer)
