"""What each served model is sent and what it must answer, over KServe's ``/infer``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perf.load.closed_loop import AnswerError
from perf.load.requests import OUTPUT_LENGTHS, Request, num_words

Outputs = Mapping[str, Any]  # output name -> its first element


@dataclass(frozen=True)
class Target:
    """One model under test: its name on the server, its request body, how its answer is read."""

    name: str
    body: Callable[[Request], dict[str, Any]]
    num_output_tokens: Callable[[Request, Outputs], int]
    """How many tokens were generated; raises ``AnswerError`` when it is not what it had to be."""


def tensor(
    name: str, datatype: str, value: object, shape: tuple[int, ...] = (1,)
) -> dict[str, Any]:
    """One single-element input in KServe's JSON form."""
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": [value]}


def tutorial_body(request: Request) -> dict[str, Any]:
    """The tutorial's model takes a prompt and nothing else."""
    return {"inputs": [tensor("text_input", "BYTES", request.prompt, (1, 1))]}


def tutorial_num_output_tokens(request: Request, outputs: Outputs) -> int:
    """Its answer repeats the prompt, and is as long for everyone as the load's longest."""
    num_tokens = num_words(outputs["text_output"]) - request.num_prompt_tokens
    return expect(num_tokens, OUTPUT_LENGTHS[-1])


def in_flight_body(request: Request) -> dict[str, Any]:
    """A request for exactly the wanted number of tokens (the model never ends by itself)."""
    return {
        "inputs": [
            tensor("text_input", "BYTES", request.prompt),
            tensor("max_tokens", "INT32", request.max_tokens),
            tensor("return_num_output_tokens", "BOOL", True),
        ]
    }


def in_flight_num_output_tokens(request: Request, outputs: Outputs) -> int:
    """The reported count and the words of the text must both be the number asked for."""
    expect(num_words(outputs["text_output"]), request.max_tokens)
    return expect(int(outputs["num_output_tokens"]), request.max_tokens)


def expect(num_tokens: int, num_expected: int) -> int:
    """``num_tokens``, if it is what it has to be."""
    if num_tokens != num_expected:
        raise AnswerError(f"got {num_tokens} output tokens, expected {num_expected}")
    return num_tokens


TUTORIAL = Target("tutorial", tutorial_body, tutorial_num_output_tokens)
IN_FLIGHT = Target("in_flight", in_flight_body, in_flight_num_output_tokens)
TARGETS = {target.name: target for target in (TUTORIAL, IN_FLIGHT)}
