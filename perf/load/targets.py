"""What each kind of server is sent over HTTP and what it must answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from perf.load.http import Response, Target
from perf.load.loop import Answer, AnswerError
from perf.load.requests import OUTPUT_LENGTHS, Request, num_words

Outputs = Mapping[str, Any]  # output name -> its first element
Check = Callable[[Request, Outputs], int]
"""How many tokens were generated; raises ``AnswerError`` when it is not what it had to be."""

ReadAnswer = Callable[[Request, Response], Answer]

INFER, GENERATE_STREAM = "/v2/models/{model}/infer", "/v2/models/{model}/generate_stream"
COMPLETIONS_PATH = "/v1/completions"
_END_OF_EVENTS = b"[DONE]"  # of OpenAI's API
_SHOWN = 300


def first_elements(body: bytes) -> Outputs:
    """The outputs of an ``/infer`` answer: name -> first element."""
    return {output["name"]: output["data"][0] for output in json.loads(body)["outputs"]}


def whole(check: Check, outputs: Callable[[bytes], Outputs] = first_elements) -> ReadAnswer:
    """Reads an answer that comes at once, and checks it."""

    def read(request: Request, response: Response) -> Answer:
        return Answer(check(request, outputs(good_body(response))))

    return read


def good_body(response: Response) -> bytes:
    """The body. Raises ``AnswerError`` where the status is not 200."""
    body = response.body()
    if response.status != 200:
        raise AnswerError(f"HTTP {response.status}: {body.decode('utf-8', 'replace')[:_SHOWN]}")
    return body


def chunks(response: Response) -> Iterator[tuple[dict[str, Any], float]]:
    """What each event says, and when it came (perf_counter). Raises ``AnswerError``."""
    if response.status != 200:
        good_body(response)
    for event, seconds in response.events():
        if event != _END_OF_EVENTS:
            chunk = json.loads(event)
            if "error" in chunk:
                raise AnswerError(str(chunk["error"])[:_SHOWN])
            yield chunk, seconds


def generate_body(request: Request) -> dict[str, Any]:
    """What ``/generate_stream`` takes."""
    return {"text_input": request.prompt, "max_tokens": request.max_tokens, "stream": True}


def read_generate_stream(request: Request, response: Response) -> Answer:
    """The tokens and times of ``/generate_stream``. Raises ``AnswerError``."""
    texts, times = [], []
    for chunk, seconds in chunks(response):
        texts.append(chunk["text_output"])
        times.append(seconds)
    return Answer(expect(num_words("".join(texts)), request.max_tokens), times)


def streamed_completions_body(request: Request) -> dict[str, Any]:
    """For ``transformers serve``, which counts tokens without being asked to."""
    return {**completions_body(request), "stream": True}


def streamed_vllm_body(request: Request) -> dict[str, Any]:
    """For vLLM, with a last event that counts tokens."""
    return {**vllm_body(request), "stream": True, "stream_options": {"include_usage": True}}


def read_completion(request: Request, response: Response) -> Answer:
    """The tokens and times of ``/v1/completions``, by the server's own count too.

    Raises ``AnswerError``.
    """
    texts, times, num_tokens = [], [], None
    for chunk, seconds in chunks(response):
        num_tokens = (chunk.get("usage") or {}).get("completion_tokens", num_tokens)
        text = "".join(choice["text"] for choice in chunk["choices"])
        if text:  # the last ones carry how it ended, and counts
            texts.append(text)
            times.append(seconds)
    if num_tokens is None:
        raise AnswerError("the stream ended without its count of tokens")
    expect(num_tokens, request.max_tokens)
    return Answer(expect(num_words("".join(texts)), request.max_tokens), times)


def ready_body(request: Request) -> str:
    """A body that comes ready-made in place of the prompt."""
    return request.prompt


def read_any_infer(_request: Request, response: Response) -> Answer:
    """Any model's answer; tokens are those that it reports. Raises ``AnswerError``."""
    outputs = {each["name"]: each["data"] for each in json.loads(good_body(response))["outputs"]}
    return Answer(sum(map(int, outputs.get("num_output_tokens", ()))))


def read_any_stream(_request: Request, response: Response) -> Answer:
    """Any model's events; tokens are those that they report. Raises ``AnswerError``."""
    num_tokens, times = 0, []
    for chunk, seconds in chunks(response):
        reported = chunk.get("num_output_tokens", 0)
        num_tokens += sum(reported) if isinstance(reported, list) else int(reported)
        times.append(seconds)
    return Answer(num_tokens, times)


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
    """What ``pipeline_app.py`` and ``batching_app.py`` of perf/lab/baselines/servers take."""
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
    """As ``completions_body``, and no token ends it."""
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


TUTORIAL = Target("tutorial", INFER, tutorial_body, whole(tutorial_num_output_tokens))
IN_FLIGHT = Target("in_flight", INFER, in_flight_body, whole(in_flight_num_output_tokens))
SSE = Target("sse", GENERATE_STREAM, generate_body, read_generate_stream)
MLSERVER = Target("mlserver", INFER, mlserver_body, whole(mlserver_num_output_tokens))
PROMPT = Target("prompt", "/generate", prompt_body, whole(prompt_num_output_tokens, json.loads))
COMPLETIONS = Target(
    "completions",
    COMPLETIONS_PATH,
    completions_body,
    whole(completions_num_output_tokens, json.loads),
)
VLLM = Target("vllm", COMPLETIONS_PATH, vllm_body, COMPLETIONS.read)
COMPLETIONS_STREAM = Target(
    "completions-stream", COMPLETIONS_PATH, streamed_completions_body, read_completion
)
VLLM_STREAM = Target("vllm-stream", COMPLETIONS_PATH, streamed_vllm_body, read_completion)
ANY_INFER = Target("any-infer", INFER, ready_body, read_any_infer)
ANY_STREAM = Target("any-stream", GENERATE_STREAM, ready_body, read_any_stream)
TARGETS = {
    target.name: target
    for target in (
        *(TUTORIAL, IN_FLIGHT, SSE, MLSERVER, PROMPT, COMPLETIONS, VLLM),
        *(COMPLETIONS_STREAM, VLLM_STREAM, ANY_INFER, ANY_STREAM),
    )
}
"""Name on the load generator's command line -> what is sent and answered."""
