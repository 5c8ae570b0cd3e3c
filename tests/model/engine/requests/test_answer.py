"""One request's answer: whole or in chunks, of one row or several, of one choice or several."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hf_triton.automatic_speech_recognition.answer import Answer as SoundAnswer
from hf_triton.runtime.errors import NO_NUMBERS, CancelledError, EngineError, OverloadedError
from hf_triton.text_generation.request.answer import (
    OUTPUTS,
    Answer,
    Choice,
    Describe,
    logprobs_json,
    wanted_outputs,
)
from hf_triton.text_generation.request.chat import ChatTemplate, ReasoningTokens
from hf_triton.text_generation.request.chat_formats import ChatFormat, read_counts, read_format
from hf_triton.text_generation.sequence.detokenizer import Detokenizer
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence, TokenLogprobs, Update
from tests.support.driving import NumberTokenizer
from tests.support.intake_driver import Caller

ALL = frozenset(OUTPUTS)


def described(token_id: int) -> dict[str, Any]:
    return {"decoded_token": str(token_id)}


class Asked:
    """An answer of ``rows`` rows with ``n`` choices each, and its sequences."""

    def __init__(
        self,
        rows: int = 1,
        n: int = 1,
        *,
        streams: bool = False,
        batched: bool = False,
        describe: Describe = described,
        call: Any = None,
    ) -> None:
        self.responder = Caller()
        self.closed: list[Answer] = []
        self.choices = [Choice("", [1] * (7 + row)) for row in range(rows) for _ in range(n)]
        self.answer = Answer(
            self.responder,
            [self.choices[row * n : (row + 1) * n] for row in range(rows)],
            ALL,
            describe,
            streams=streams,
            batched=batched,
            call=call,
        )
        self.sequences = [
            Sequence([1], SamplingParams(9), self.answer, Detokenizer(NumberTokenizer(), []))
            for _ in range(rows * n)
        ]
        self.answer.expect(self.sequences, lambda answer, _: self.closed.append(answer))

    def news(self, number: int, *token_ids: int, end: str | None = None) -> None:
        logprobs = [TokenLogprobs(-0.5, 1)] * len(token_ids)
        update = Update(self.sequences[number], list(token_ids), logprobs, None, end, None)
        self.answer.take(update)
        self.answer.flush()

    @property
    def texts(self) -> list[Any]:
        return [outputs["text_output"] for outputs in self.responder.responses]


def test_a_whole_answer_is_one_response_when_all_choices_are_done() -> None:
    asked = Asked(rows=2, n=2, batched=True)
    for number in (2, 0, 1):
        asked.news(number, 3, number, end="length")
        assert asked.responder.responses == []
    asked.news(3, 8, end="stop")
    (outputs,) = asked.responder.responses
    assert asked.responder.done.is_set()
    assert outputs["text_output"] == [[b" 3 0", b" 3 1"], [b" 3 2", b" 8"]]
    assert outputs["finish_reason"] == [[b"length", b"length"], [b"length", b"stop"]]
    assert outputs["num_input_tokens"] == [[7], [8]]
    assert outputs["num_output_tokens"] == [[2, 2], [2, 1]]
    assert outputs["cumulative_logprob"] == [[-1.0, -1.0], [-1.0, -0.5]]
    assert asked.closed == [asked.answer]
    asked.answer.fail(RuntimeError("late"))
    assert asked.responder.error is None


def test_a_stream_sends_each_piece_and_the_final_flag_with_the_last() -> None:
    asked = Asked(streams=True)
    asked.choices[0].prefix = "Say:"
    asked.news(0, 3)
    asked.news(0, 4, 5)
    assert not asked.responder.done.is_set()
    asked.news(0, 6, end="length")
    assert asked.texts == [[b"Say: 3"], [b" 4 5"], [b" 6"]]
    assert asked.responder.done.is_set()
    outputs = asked.responder.responses
    assert [one["num_output_tokens"] for one in outputs] == [[1], [2], [1]]
    assert [one["finish_reason"] for one in outputs] == [[b""], [b""], [b"length"]]
    assert [one["cumulative_logprob"] for one in outputs] == [[-0.5], [-1.5], [-2.0]]
    assert [one["num_input_tokens"] for one in outputs] == [[7]] * 3
    assert [len(json.loads(one["logprobs"][0])) for one in outputs] == [1, 2, 1]


def test_a_stream_without_text_waits_but_an_end_is_told() -> None:
    asked = Asked(streams=True)
    news = Update(asked.sequences[0], [3], [TokenLogprobs(-1, 2)], "", None, None)
    asked.answer.take(news)
    asked.answer.flush()
    assert asked.responder.responses == []
    asked.answer.take(Update(asked.sequences[0], [], [], "", "timeout", None))
    asked.answer.flush()
    (outputs,) = asked.responder.responses
    assert asked.responder.done.is_set()
    assert (outputs["text_output"], outputs["num_output_tokens"]) == ([b""], [1])


class Call:
    """What a port says of a request; keeps what it is told of it."""

    trace = None

    def __init__(self) -> None:
        self.used: list[dict[str, float]] = []

    def tell_use(self, **used: float) -> None:
        self.used.append(used)


@pytest.mark.parametrize("leaves", [False, True])
def test_tokens_are_told_once_before_the_end(leaves: bool) -> None:
    asked = Asked(rows=2, n=2, streams=True, batched=True, call=(call := Call()))
    for number, sequence in enumerate(asked.sequences):
        sequence.token_ids += [3, 4]
        asked.news(number, 3, 4)
    assert call.used == []
    if leaves:
        asked.answer.fail(CancelledError("left"))
    for number, sequence in enumerate(asked.sequences):
        sequence.token_ids += [5]
        asked.news(number, 5, end="length")
    assert call.used == [{"prompt_tokens": 7 + 8, "generated_tokens": 8 if leaves else 12}]


def test_a_streams_choices_come_side_by_side() -> None:
    asked = Asked(n=2, streams=True)
    asked.news(1, 4)
    asked.news(0, 3, end="length")
    asked.news(1, 5, end="length")
    assert asked.texts == [[b"", b" 4"], [b" 3", b""], [b"", b" 5"]]
    reasons = [outputs["finish_reason"] for outputs in asked.responder.responses]
    assert reasons == [[b"", b""], [b"length", b""], [b"length", b"length"]]


def test_an_error_answers_once_and_nothing_follows() -> None:
    asked = Asked(n=2, streams=True)
    asked.news(0, 3)
    error = OverloadedError("gone")
    asked.answer.take(Update(asked.sequences[1], [], [], None, "error", error))
    asked.news(0, 4, end="length")
    asked.answer.fail(RuntimeError("again"))
    assert asked.responder.error is error
    assert asked.texts == [[b" 3", b""]]
    assert asked.closed == [asked.answer]


@pytest.mark.parametrize("streams", [False, True])
def test_an_answer_that_cannot_be_made_is_an_error(streams: bool) -> None:
    error = ValueError("no such token")

    def refuse(_: int) -> dict[str, Any]:
        raise error

    asked = Asked(streams=streams, describe=refuse)
    with pytest.raises(ValueError, match="no such token"):
        asked.news(0, 3, end="length")
    asked.answer.fail(error)
    assert asked.responder.error is error
    assert asked.closed == [asked.answer]


def test_logprobs_name_the_sampled_token_first() -> None:
    found = TokenLogprobs(-2.5, 3, ((1, -0.25, 1), (9, -1.5, 2)))
    (entry,) = json.loads(logprobs_json([5], [found], described))
    assert list(entry) == ["5", "1", "9"]
    assert entry["5"] == {"logprob": -2.5, "rank": 3, "decoded_token": "5"}
    assert entry["9"] == {"logprob": -1.5, "rank": 2, "decoded_token": "9"}


def test_a_log_probability_that_is_no_number_is_an_error_and_never_json() -> None:
    with pytest.raises(EngineError, match=NO_NUMBERS):
        logprobs_json([5], [TokenLogprobs(float("nan"), 1)], described)


def test_what_is_told_of_a_prompt_comes_once_with_the_first_piece() -> None:
    asked = Asked(streams=True)
    sequence = asked.sequences[0]
    asked.choices[0].prompt_token_ids = sequence.prompt_token_ids = [4, 5, 6]
    sequence.prompt_logprobs += [TokenLogprobs(-2.5, 3), TokenLogprobs(-0.5, 1, ((9, -1.5, 2),))]
    asked.news(0, 3)
    asked.news(0, 8, end="length")
    first, last = asked.responder.responses
    begin, *others = json.loads(first["prompt_logprobs"][0])
    assert begin == {"4": {"logprob": None, "rank": None, "decoded_token": "4"}}
    assert [list(other) for other in others] == [["5"], ["6", "9"]]
    assert others[1]["9"] == {"logprob": -1.5, "rank": 2, "decoded_token": "9"}
    assert first["prompt_token_ids"] == [b"[4, 5, 6]"]
    assert first["token_ids"] == [b"[3]"]
    assert last["token_ids"] == [b"[8]"]
    assert last["prompt_logprobs"] == last["prompt_token_ids"] == [b"[]"]


def test_a_text_that_an_encoder_has_read_is_told_when_the_engine_has_forgotten_it() -> None:
    asked = Asked()
    asked.sequences[0].continues_prompt = False
    asked.news(0, 3, end="length")
    [outputs] = asked.responder.responses
    assert outputs["prompt_token_ids"] == [b"[1, 1, 1, 1, 1, 1, 1]"]


@pytest.mark.threat("guesses-in-metrics")
def test_reused_tokens_are_told_to_whom_they_belong() -> None:
    for salt, expected in ((None, 0), ("ann", 12)):
        asked = Asked()
        asked.sequences[0].cache_salt, asked.sequences[0].num_reused_tokens = salt, 12
        asked.news(0, 3, end="length")
        [outputs] = asked.responder.responses
        assert outputs["num_cached_tokens"] == [expected]


@pytest.mark.parametrize(
    "listed, flagged, wanted",
    [
        (OUTPUTS, (), {"text_output"}),
        (OUTPUTS, ("logprobs",), {"text_output", "logprobs"}),
        (("finish_reason",), ("logprobs",), {"finish_reason"}),
    ],
)
def test_outputs_are_those_listed_or_flagged(listed: Any, flagged: Any, wanted: set[str]) -> None:
    assert wanted_outputs(listed, frozenset(flagged)) == wanted


def test_shapes_follow_the_batch() -> None:
    asked = Asked(rows=1, n=3, batched=True)
    for number in range(3):
        asked.news(number, 4, end="length")
    arrays = asked.responder.arrays
    shapes = {name: array.shape for name, array in arrays.items()}
    for name in (
        "num_input_tokens",
        "prompt_logprobs",
        "prompt_token_ids",
        "num_cached_tokens",
        "chat_format",
    ):
        assert shapes.pop(name) == (1, 1)
    assert set(shapes.values()) == {(1, 3)}
    assert arrays["num_output_tokens"].dtype == np.uint32


def test_the_tokens_of_a_reasoning_are_counted_for_each_choice() -> None:
    asked = Asked(n=2, streams=True)
    for choice in asked.choices:
        choice.chat_format = ChatFormat(reasoning="think").to_json()
        choice.reasoning = ReasoningTokens(begin=50, end=51, inside=False)
    for token_id in (50, 1, 2, 51, 50):
        asked.news(0, token_id)
    asked.news(1, 4, 5, end="stop")
    told = [outputs["chat_format"][0].decode() for outputs in asked.responder.responses]
    assert [read_counts(text) for text in told] == [[], [1, 0], *[[2, 0]] * 4]
    assert read_format(told[-1]) == ChatFormat(reasoning="think")


def test_only_marks_that_are_tokens_are_counted_by() -> None:
    chat = ChatTemplate(None)
    chat.added_tokens = {"<think>": 50, "</think>": 51, "[THINK]": 52}
    assert chat.reasoning_tokens(ChatFormat(reasoning="think", inside=True)) == ReasoningTokens(
        *(50, 51), inside=True
    )
    for other in ("granite", "mistral", None):
        assert chat.reasoning_tokens(ChatFormat(reasoning=other)) is None


def test_an_answer_to_a_sound_that_cannot_be_made_is_an_error() -> None:
    sound: Any = SimpleNamespace(finish_reason="stop", text="", segments=[float("nan")])
    responder = Caller()
    closed: list[Exception | None] = []
    answer = SoundAnswer(
        responder,
        [sound],
        frozenset(["segments"]),
        lambda _: None,
        lambda _, error: closed.append(error),
        streams=False,
        batched=False,
    )
    with pytest.raises(EngineError, match=NO_NUMBERS) as raised:
        answer.flush()
    answer.fail(raised.value)
    assert [responder.error] == closed == [raised.value]
