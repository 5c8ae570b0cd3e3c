"""What the two models are sent and what counts as their right answer."""

from __future__ import annotations

import pytest

from perf.load.closed_loop import AnswerError
from perf.load.requests import Request
from perf.load.targets import IN_FLIGHT, TUTORIAL

REQUEST = Request(index=0, prompt="baca bada", num_prompt_tokens=2, max_tokens=3)


def test_the_tutorial_model_is_sent_a_batch_of_one_prompt() -> None:
    assert TUTORIAL.body(REQUEST) == {
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["baca bada"]}
        ]
    }


def test_the_engine_is_asked_for_exactly_the_wanted_tokens() -> None:
    inputs = {i["name"]: i["data"][0] for i in IN_FLIGHT.body(REQUEST)["inputs"]}
    assert inputs == {"text_input": "baca bada", "max_tokens": 3, "return_num_output_tokens": True}


def test_the_tutorial_answer_holds_the_prompt_and_the_longest_output() -> None:
    answer = {"text_output": " ".join(["baca"] * 130)}
    assert TUTORIAL.num_output_tokens(REQUEST, answer) == 128
    with pytest.raises(AnswerError, match="got 1 output tokens, expected 128"):
        TUTORIAL.num_output_tokens(REQUEST, {"text_output": "a b c"})


@pytest.mark.parametrize("text,num_tokens", [("a b c", 2), ("a b", 3)])
def test_text_and_count_must_both_be_as_asked(text: str, num_tokens: int) -> None:
    answer = {"text_output": "a b c", "num_output_tokens": 3}
    assert IN_FLIGHT.num_output_tokens(REQUEST, answer) == 3
    with pytest.raises(AnswerError, match="got 2 output tokens, expected 3"):
        IN_FLIGHT.num_output_tokens(REQUEST, {"text_output": text, "num_output_tokens": num_tokens})
