"""Receives requests and follows them until they are answered. Sounds are decoded, and their
features computed, on a few threads of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from hf_triton.runtime.engine.reception import PooledReception
from hf_triton.runtime.media.decoding import MediaLimits
from hf_triton.runtime.metrics.publishing import Family
from hf_triton.runtime.metrics.work_metrics import TURNED_AWAY
from hf_triton.runtime.request.file_threads import FileThreads, Reading
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.request.tensors import RequestFields
from hf_triton.text_generation.request.open_answers import OpenAnswers

from .answer import OUTPUTS, Answer, Sound
from .request import SpeechReader, SpeechRow
from .speech_loading import LoadedSpeech


class Reception(PooledReception):
    def __init__(self, loaded: LoadedSpeech, *, batched: bool) -> None:
        options = loaded.options
        self._speech, self._engine, self._batched = loaded.speech, loaded.engine, batched
        self._reader = SpeechReader(options, loaded.speech.check)
        self._limits = MediaLimits(0, options.max_audio_s)
        self._files = FileThreads(options.num_reader_threads)
        super().__init__(
            self._engine.thread,
            [self._files],
            max_queue_size=self._engine.max_num_seqs + options.max_queue_size,
            description=loaded.description,
            unload_grace_s=options.unload_grace_s,
        )
        self._open = OpenAnswers(self._engine)

    def families(self) -> Iterable[Family]:
        return self._engine.families()

    def stop(self, grace_s: float) -> None:
        super().stop(grace_s)
        self._engine.stop(0.0)  # sends its last text
        self._open.stop()

    def _accept(self, request: Request) -> None:
        arrived_s, responder = time.monotonic(), request.responder
        fields = RequestFields(request.inputs, request.parameters, batched=self._batched)
        rows = self._reader.read(fields)
        streams = request.may_stream and any(row.streams for row in rows)
        wanted = frozenset(request.outputs)
        if len(wanted) == len(OUTPUTS):  # it lists all or none
            timestamps = any(row.wanted.timestamps for row in rows)
            wanted = frozenset(("text_output", "language", *(["segments"] * timestamps)))
        answer = partial(
            Answer,
            responder,
            wanted=wanted,
            submit=self._thread.submit,
            on_close=lambda answer, _: self._open.closed(answer),
            streams=streams,
            batched=self._batched,
        )
        timeouts_ms = [row.timeout_ms for row in rows if row.timeout_ms is not None]
        deadline_s = arrived_s + min(timeouts_ms) / 1000 if timeouts_ms else None
        self._files.run(
            Reading(responder, deadline_s, request.call),
            sum(row.num_bytes for row in rows),
            partial(self._read, rows, answer, arrived_s),
        )

    def _read(
        self, rows: list[SpeechRow], answer: Callable[..., Answer], arrived_s: float
    ) -> Callable[[], None]:
        self._thread.check_running()  # skip decoding what won't be computed
        sounds = [self._sound(row, arrived_s) for row in rows]

        def begin() -> None:
            made = answer(sounds=sounds)
            made.begin()
            self._open.submit(made, sum(sound.transcript.num_bytes for sound in sounds))

        return begin

    def _sound(self, row: SpeechRow, arrived_s: float) -> Sound:
        speech = self._speech
        samples = row.samples(speech.sampling_rate, self._limits)
        return Sound(
            transcript=speech.transcript(samples, row.wanted),
            params=row.params,
            duration=len(samples) / speech.sampling_rate,
            deadline_s=None if row.timeout_ms is None else arrived_s + row.timeout_ms / 1000,
            fails_on_timeout=row.fails_on_timeout,
            speech=speech,
        )

    def _count(self, outcome: str) -> None:
        if outcome == TURNED_AWAY:  # the engine counts its sequences
            self._engine.metrics.num_refused += 1
