"""What the two models are sent and what counts as their right answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perf.load.closed_loop import AnswerError
from perf.load.requests import Request
from perf.load.targets import COMPLETIONS, IN_FLIGHT, MLSERVER, PROMPT, TUTORIAL, VLLM

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


def completion(text: str, num_prompt_tokens: int = 2, num_tokens: int = 3) -> dict[str, Any]:
    usage = {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens}
    return {"choices": [{"text": text}], "usage": usage}


def test_vllm_is_asked_for_exactly_the_wanted_tokens() -> None:
    asked = {"prompt": "baca bada", "max_tokens": 3, "temperature": 0}
    assert COMPLETIONS.body(REQUEST) == asked
    assert VLLM.body(REQUEST) == {**asked, "ignore_eos": True}


def test_prompt_and_completion_must_be_as_long_as_asked_by_count_and_by_words() -> None:
    assert VLLM.num_output_tokens(REQUEST, completion("a b c")) == 3
    for wrong, message in (
        (completion("a b c", num_prompt_tokens=3), "it read 3 prompt tokens, expected 2"),
        (completion("a b"), "got 2 output tokens, expected 3"),
        (completion("a b c", num_tokens=4), "got 4 output tokens, expected 3"),
    ):
        with pytest.raises(AnswerError, match=message):
            VLLM.num_output_tokens(REQUEST, wrong)


def test_mlserver_is_asked_for_one_length_and_answers_json_within_json() -> None:
    inputs = {i["name"]: i["data"][0] for i in MLSERVER.body(REQUEST)["inputs"]}
    assert (inputs["array_inputs"], inputs["max_new_tokens"]) == ("baca bada", "128")
    text = " ".join(["baca"] * 128)
    for answer in ([{"generated_text": text}], {"generated_text": text}):
        assert MLSERVER.num_output_tokens(REQUEST, {"output": json.dumps(answer)}) == 128


def test_an_app_answers_the_wanted_words() -> None:
    assert PROMPT.body(REQUEST) == {"prompt": "baca bada", "max_new_tokens": 3}
    assert PROMPT.num_output_tokens(REQUEST, {"generated_text": " a b c"}) == 3
