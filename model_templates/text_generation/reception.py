"""Takes requests in and follows them until they are answered.

Requests come from Triton's ``execute`` and from fronts; here they are all alike. Knows the engine
only as a place to submit sequences to and to cancel them at.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from hf_runtime import log
from hf_runtime.errors import RequestError, RuntimeModelError, place
from hf_runtime.request.request_ids import labelled
from hf_runtime.request.responder import Responder, pause_s
from hf_runtime.request.tensors import RequestFields

from .loading import LoadedModel
from .request.answer import Answer, Choice, wanted_outputs
from .request.parsing import Generation, GenerationRequest, parse_request
from .sampling.sampler import choice_seed
from .sequence.detokenizer import Detokenizer
from .sequence.sequence import Sequence
from .structured.compiling import Started

_LOGPROBS = frozenset(("logprobs", "cumulative_logprob"))


class Reception:
    """The open requests of one engine. ``close`` ends its thread."""

    def __init__(self, loaded: LoadedModel, *, batched: bool) -> None:
        self._loaded = loaded
        self._batched = batched
        self._compiler = loaded.compiler
        self._open: dict[Answer, None] = {}  # changed one key at a time, which is atomic
        self._wake = threading.Event()
        self._closing = False
        self._watcher = threading.Thread(target=self._watch, name="cancellations", daemon=True)
        self._watcher.start()

    def take(
        self,
        fields: RequestFields,
        listed: Iterable[str],
        responder: Responder,
        *,
        may_stream: bool,
    ) -> None:
        """Starts one request, or answers it with what is wrong with it; never raises.

        ``listed`` are the outputs that the request names; ``may_stream`` is False where its caller
        can be answered only once.
        """
        arrived_s = time.monotonic()
        try:
            request = parse_request(fields, self._loaded.reader)
            # Clients of TensorRT-LLM, which alone know this input, read its flat outputs.
            batched = self._batched and not fields.has_tensor("beam_width")
            streams = request.stream and may_stream
            start = partial(
                self._start,
                request,
                listed,
                responder,
                arrived_s=arrived_s,
                streams=streams,
                batched=batched,
            )
            constraints = request.constraints
            if constraints:
                fail = partial(_fail, responder)
                self._compiler.when_ready(constraints, partial(_guarded, responder, start), fail)
            else:
                start({})
        except Exception as error:
            _fail(responder, error)

    def close(self) -> None:
        """Stops looking for callers that leave."""
        self._closing = True
        self._wake.set()
        self._watcher.join()
        self._compiler.close()

    def _start(
        self,
        request: GenerationRequest,
        listed: Iterable[str],
        responder: Responder,
        grammars: Started,
        *,
        arrived_s: float,
        streams: bool,
        batched: bool,
    ) -> None:
        wanted = wanted_outputs(listed, request.outputs)
        answer = Answer(
            responder,
            [[_choice(row) for _ in range(row.n)] for row in request.rows],
            wanted,
            self._decode_token,
            streams=streams,
            batched=batched,
        )
        with_logprobs = not wanted.isdisjoint(_LOGPROBS)
        if with_logprobs and any(row.params.num_beams > 1 for row in request.rows):
            raise RequestError("logprobs: beams have none; send beam_width 1 for them")
        sequence = partial(
            self._sequence,
            answer=answer,
            grammars=grammars,
            arrived_s=arrived_s,
            with_logprobs=with_logprobs,
        )
        answer.expect(
            [sequence(row, index) for row in request.rows for index in range(row.n)],
            self._closed,
        )
        self._open[answer] = None
        try:
            self._loaded.engine.submit(answer.sequences)
        except RuntimeModelError:
            self._open.pop(answer, None)
            raise
        self._wake.set()

    def _sequence(
        self,
        row: Generation,
        index: int,
        *,
        answer: Answer,
        grammars: Started,
        arrived_s: float,
        with_logprobs: bool,
    ) -> Sequence:
        """The sequence of one choice of a row."""
        params = replace(row.params, seed=choice_seed(row.params.seed, index))
        if with_logprobs and params.num_logprobs is None:
            params = replace(params, num_logprobs=0)
        continues = not self._loaded.is_encoder_decoder
        detokenizer = Detokenizer(
            self._loaded.tokenizer,
            row.prompt_token_ids if continues else [],
            params.stop_words,
            include_stop_word=params.include_stop_word,
        )
        held = None if params.constraint is None else grammars.get(params.constraint)
        return Sequence(
            row.prompt_token_ids,
            params,
            answer,
            detokenizer,
            continues_prompt=continues,
            decoder_start=row.decoder_start,
            lora_name=row.lora_name,
            deadline_s=None if row.timeout_ms is None else arrived_s + row.timeout_ms / 1000,
            fails_on_timeout=row.on_timeout == "error",
            grammar=None if held is None else held(),
        )

    def _closed(self, answer: Answer) -> None:
        """Forgets an answered request; what it still generates is for nobody."""
        self._open.pop(answer, None)
        unfinished = [s for s in answer.sequences if s.finish_reason is None]
        if unfinished:
            self._loaded.engine.cancel(unfinished)

    def _watch(self) -> None:
        """Cancels the sequences of callers that have left."""
        while not self._closing:
            if not self._open:
                self._wake.wait()
                self._wake.clear()
                continue
            began, answers = time.monotonic(), list(self._open)
            for answer in answers:
                if not answer.is_closed and answer.is_cancelled():
                    self._loaded.engine.cancel(answer.sequences)
            round_s = time.monotonic() - began
            time.sleep(pause_s(len(answers), round_s, self._loaded.engine.last_step_s))

    def _decode_token(self, token_ids: list[int]) -> str:
        text: str = self._loaded.tokenizer.decode(
            token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text


def _guarded(responder: Responder, start: Callable[[Started], None], grammars: Started) -> None:
    try:
        start(grammars)
    except Exception as error:
        _fail(responder, error)


def _fail(responder: Responder, error: Exception) -> None:
    """Answers one request; an error that is our own fault is told of, too."""
    if not isinstance(error, RuntimeModelError):
        log.error(labelled(responder.request_id, f"a request failed: {place(error)}"))
    responder.fail(error)


def _choice(row: Generation) -> Choice:
    return Choice("" if row.exclude_input else row.text, len(row.prompt_token_ids))
