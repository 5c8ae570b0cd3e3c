"""What each served model is sent over HTTP and what it must answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perf.load.closed_loop import AnswerError
from perf.load.requests import OUTPUT_LENGTHS, Request, num_words

Outputs = Mapping[str, Any]  # output name -> its first element
INFER = "/v2/models/{model}/infer"


def first_elements(body: bytes) -> Outputs:
    """The outputs of an ``/infer`` answer: name -> first element."""
    return {output["name"]: output["data"][0] for output in json.loads(body)["outputs"]}


@dataclass(frozen=True)
class Target:
    """One model under test: its name on the server, its request body, how its answer is read."""

    name: str
    body: Callable[[Request], dict[str, Any]]
    num_output_tokens: Callable[[Request, Outputs], int]
    """How many tokens were generated; raises ``AnswerError`` when it is not what it had to be."""
    path: str = INFER
    outputs: Callable[[bytes], Outputs] = first_elements  # of a whole answer


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


def prompt_body(request: Request) -> dict[str, Any]:
    """What ``perf/baselines/pipeline_app.py`` and ``batching_app.py`` take."""
    return {"prompt": request.prompt, "max_new_tokens": request.max_tokens}


def prompt_num_output_tokens(request: Request, outputs: Outputs) -> int:
    """The words of the text must be as many as asked for."""
    return expect(num_words(outputs["generated_text"]), request.max_tokens)


def mlserver_body(request: Request) -> dict[str, Any]:
    """A prompt under the name that MLServer can batch. It takes the options of the first request of
    a batch for all of them, so that one length for everybody is what can be asked for.
    """
    return {
        "inputs": [
            with_content_type(tensor("array_inputs", "BYTES", request.prompt), "str"),
            with_content_type(
                tensor("max_new_tokens", "BYTES", str(OUTPUT_LENGTHS[-1])), "hg_json"
            ),
            with_content_type(tensor("return_full_text", "BYTES", "false"), "hg_json"),
            with_content_type(tensor("do_sample", "BYTES", "false"), "hg_json"),
        ]
    }


def with_content_type(an_input: dict[str, Any], content_type: str) -> dict[str, Any]:
    """An input that says how MLServer has to read it."""
    return {**an_input, "parameters": {"content_type": content_type}}


def mlserver_num_output_tokens(_request: Request, outputs: Outputs) -> int:
    """As long for everyone as the load's longest; the answer is JSON text within JSON."""
    answer = json.loads(outputs["output"])
    while isinstance(answer, list):
        answer = answer[0]
    return expect(num_words(answer["generated_text"]), OUTPUT_LENGTHS[-1])


def completions_body(request: Request) -> dict[str, Any]:
    """A greedy request of OpenAI's legacy API; the server has one model, so it need not be named.

    ``transformers serve`` refuses ``ignore_eos``; the model has no token that would end a text.
    """
    return {"prompt": request.prompt, "max_tokens": request.max_tokens, "temperature": 0}


def vllm_body(request: Request) -> dict[str, Any]:
    """The same, and no token ends it."""
    return {**completions_body(request), "ignore_eos": True}


def completions_num_output_tokens(request: Request, outputs: Outputs) -> int:
    """Prompt and output must be as long as they should be by the server's own count, and the output
    by its words too.
    """
    usage = outputs["usage"]
    if usage["prompt_tokens"] != request.num_prompt_tokens:
        raise AnswerError(
            f"it read {usage['prompt_tokens']} prompt tokens, expected {request.num_prompt_tokens}"
        )
    expect(num_words(outputs["choices"][0]["text"]), request.max_tokens)
    return expect(usage["completion_tokens"], request.max_tokens)


COMPLETIONS_PATH = "/v1/completions"
TUTORIAL = Target("tutorial", tutorial_body, tutorial_num_output_tokens)
IN_FLIGHT = Target("in_flight", in_flight_body, in_flight_num_output_tokens)
PROMPT = Target("prompt", prompt_body, prompt_num_output_tokens, "/generate", json.loads)
MLSERVER = Target("mlserver", mlserver_body, mlserver_num_output_tokens)
COMPLETIONS = Target(
    "completions", completions_body, completions_num_output_tokens, COMPLETIONS_PATH, json.loads
)
VLLM = Target("vllm", vllm_body, completions_num_output_tokens, COMPLETIONS_PATH, json.loads)
TARGETS = {
    target.name: target for target in (TUTORIAL, IN_FLIGHT, PROMPT, MLSERVER, COMPLETIONS, VLLM)
}
"""Name on the load generator's command line -> what is sent and answered."""
