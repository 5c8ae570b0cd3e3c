"""One request's answer: transcribes each of its sounds window by window, and sends the text. Knows
no model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_triton.runtime.errors import RuntimeModelError
from hf_triton.runtime.request.json_text import written
from hf_triton.runtime.request.responder import Responder, strings
from hf_triton.text_generation.request.answer import OneAnswer
from hf_triton.text_generation.sampling.sampler import choice_seed
from hf_triton.text_generation.sequence.detokenizer import Detokenizer
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence, Update

from .transcript import Segment, SpeechModel, Transcript, Window

OUTPUTS = ("text_output", "segments", "language", "duration", "finish_reason")
Submit = Callable[[list[Sequence]], None]


@dataclass(eq=False)
class Sound:
    """One row: its transcript and what is not sent yet. ``duration`` in seconds."""

    transcript: Transcript
    params: SamplingParams
    duration: float
    deadline_s: float | None
    fails_on_timeout: bool
    speech: SpeechModel
    text: str = ""
    segments: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = ""
    _window: Window | None = None
    _token_ids: list[int] = field(default_factory=list)
    _num_windows: int = 0
    _num_begun: int = 0  # segments of this window that were passed on
    _was_cut: bool = False  # a window reached max_tokens before its end

    def next_sequence(self, answer: Answer) -> Sequence | None:
        """The sequence of the next window; None where the sound has ended."""
        self._window = window = self.transcript.next_window()
        if window is None:
            return None
        self._token_ids, self._num_begun = [], 0
        known = window.prompt_token_ids if window.continues_prompt else []
        seed = choice_seed(self.params.seed, self._num_windows)
        self._num_windows += 1
        return Sequence(
            window.prompt_token_ids,
            replace(self.params, max_tokens=window.max_tokens, seed=seed, rule=window.rule),
            answer,
            Detokenizer(self.speech.tokenizer, known),
            continues_prompt=window.continues_prompt,
            source=window.source,
            deadline_s=self.deadline_s,
            fails_on_timeout=self.fails_on_timeout,
        )

    def take(self, update: Update, *, streams: bool) -> None:
        """Adds the new tokens of the window; ``finish_reason`` is set where no other follows."""
        assert self._window is not None
        self._token_ids += update.token_ids
        if streams and self._window.is_plain:
            self.text += update.read_text()
        elif streams:
            self._add(self.transcript.begun(self._token_ids))
        if update.finish_reason is None:
            return
        segments = self.transcript.ended(self._token_ids)
        self._add(segments, with_text=not (streams and self._window.is_plain))
        self._was_cut |= bool(segments) and update.finish_reason == "length"
        if update.finish_reason == "timeout":
            self.finish_reason = "timeout"

    def end(self) -> None:
        self.finish_reason = self.finish_reason or ("length" if self._was_cut else "stop")

    def _add(self, segments: list[Segment], *, with_text: bool = True) -> None:
        for segment in segments[self._num_begun :]:
            text = self.speech.text(segment.token_ids)
            times = {"start": round(segment.start, 2), "end": round(segment.end, 2)}
            more = {**segment.more, "temperature": self.params.temperature} if segment.more else {}
            self.segments.append({**times, "text": text, **more})
            self.text += text if with_text else ""
        self._num_begun = len(segments)


class Answer(OneAnswer):
    """The recipient of all windows of a request; answers its caller exactly once."""

    def __init__(
        self,
        responder: Responder,
        sounds: list[Sound],
        wanted: frozenset[str],
        submit: Submit,
        on_close: Callable[[Answer, Exception | None], None],
        *,
        streams: bool,
        batched: bool,
    ) -> None:
        super().__init__(responder)
        self.streams = streams
        self._sounds, self._wanted = sounds, wanted
        self._submit, self._on_close = submit, on_close
        self._shape = (len(sounds), 1) if batched else (len(sounds),)
        self._running: dict[Sequence, Sound] = {}

    def begin(self) -> None:
        for sound in self._sounds:
            sequence = sound.next_sequence(self)
            assert sequence is not None
            self._running[sequence] = sound

    @property
    def sequences(self) -> list[Sequence]:
        return list(self._running)

    def take(self, update: Update) -> None:
        """Takes new tokens of a window; at its end submits the next one."""
        if update.error is not None:
            self.fail(update.error)
        if self.is_closed:
            return
        sound = self._running[update.sequence]
        sound.take(update, streams=self.streams)
        if update.finish_reason is None:
            return
        following = None if sound.finish_reason else sound.next_sequence(self)
        if following is None:
            sound.end()
        else:
            self._running[following] = sound
            try:
                self._submit([following])
            except RuntimeModelError as error:  # the engine has died, or is being unloaded
                self.fail(error)
        del self._running[update.sequence]

    def flush(self) -> None:
        """Sends a chunk if there is new text; the whole answer once all is done."""
        done = all(sound.finish_reason for sound in self._sounds)
        news = self.streams and any(sound.text or sound.segments for sound in self._sounds)
        if self.is_closed or not (done or news):
            return
        # Before closing, after which their error would not be answered.
        outputs = {name: self._output(name).reshape(self._shape) for name in self._wanted}
        if done and not self._close():
            return
        for sound in self._sounds:
            sound.text, sound.segments = "", []
        self._responder.send(outputs, final=done)
        if done:
            self._on_close(self, None)

    def _output(self, name: str) -> npt.NDArray[Any]:
        if name == "duration":
            return np.array([sound.duration for sound in self._sounds], dtype=np.float32)
        read: dict[str, Callable[[Sound], str]] = {
            "text_output": lambda sound: sound.text,
            "segments": lambda sound: written(sound.segments),
            "language": lambda sound: sound.transcript.language,
            "finish_reason": lambda sound: sound.finish_reason,
        }
        return strings([*map(read[name], self._sounds)])
