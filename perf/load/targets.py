"""The routes that the load generator knows: the body of a request, and how its answer is read.

Answers to the mixed load are checked: the measured model has no end token and one word is one
token, so the words of an answer can be counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf.load.requests import OUTPUT_LENGTHS, Request, num_words

INFER, GENERATE_STREAM = "/v2/models/{model}/infer", "/v2/models/{model}/generate_stream"
COMPLETIONS = "/v1/completions"
_END_OF_EVENTS = b"[DONE]"  # of OpenAI's API
_SHOWN = 300


class AnswerError(Exception):
    """An error or a wrong answer; it is counted, and the loop goes on."""


@dataclass(frozen=True)
class Response:
    """A whole answer: its bytes as they came, each piece with its time (perf_counter)."""

    status: int
    arrivals: Sequence[tuple[float, bytes]]

    def body(self) -> bytes:
        """Raises ``AnswerError`` where the status is not 200."""
        body = b"".join(data for _, data in self.arrivals)
        if self.status != 200:
            raise AnswerError(f"HTTP {self.status}: {body.decode('utf-8', 'replace')[:_SHOWN]}")
        return body

    def events(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """Each server-sent event, with the time of its last byte. Raises ``AnswerError``."""
        if self.status != 200:
            self.body()
        waiting = b""
        for seconds, data in self.arrivals:
            *whole, waiting = (waiting + data).split(b"\n\n")
            for event in whole:
                carried = event.strip().removeprefix(b"data:").strip()
                if carried and carried != _END_OF_EVENTS:
                    chunk = json.loads(carried)
                    if "error" in chunk:
                        raise AnswerError(str(chunk["error"])[:_SHOWN])
                    yield seconds, chunk


@dataclass(frozen=True)
class Answer:
    """A right answer: its tokens, and when each piece of a streamed one came (perf_counter)."""

    num_output_tokens: int
    chunk_s: Sequence[float] = ()


@dataclass(frozen=True)
class Target:
    """One route: its path, in which {model} stands for the model's name, a request's body, and
    what reads and checks an answer and raises ``AnswerError``.
    """

    path: str
    body: Callable[[Request], Mapping[str, object] | str]
    read: Callable[[Request, Response], Answer]


def expect(num_tokens: int, num_expected: int) -> int:
    """``num_tokens``, if it is the expected number."""
    if num_tokens != num_expected:
        raise AnswerError(f"got {num_tokens} output tokens, expected {num_expected}")
    return num_tokens


def _outputs(response: Response) -> dict[str, list[Any]]:
    return {each["name"]: each["data"] for each in json.loads(response.body())["outputs"]}


def _any_infer(_: Request, response: Response) -> Answer:
    """Of any model; tokens are those that it reports."""
    return Answer(sum(map(int, _outputs(response).get("num_output_tokens", ()))))


def _any_stream(_: Request, response: Response) -> Answer:
    num_tokens, times = 0, []
    for seconds, chunk in response.events():
        reported = chunk.get("num_output_tokens", 0)
        num_tokens += sum(reported) if isinstance(reported, list) else int(reported)
        times.append(seconds)
    return Answer(num_tokens, times)


def _tensor(name: str, datatype: str, value: object, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape) or [1], "data": [value]}


def _in_flight_body(request: Request) -> dict[str, Any]:
    return {
        "inputs": [
            _tensor("text_input", "BYTES", request.prompt),
            _tensor("max_tokens", "INT32", request.max_tokens),
            _tensor("return_num_output_tokens", "BOOL", True),
        ]
    }


def _in_flight(request: Request, response: Response) -> Answer:
    outputs = _outputs(response)
    expect(num_words(outputs["text_output"][0]), request.max_tokens)
    return Answer(expect(int(outputs["num_output_tokens"][0]), request.max_tokens))


def _sse_body(request: Request) -> dict[str, Any]:
    return {"text_input": request.prompt, "max_tokens": request.max_tokens, "stream": True}


def _sse(request: Request, response: Response) -> Answer:
    events = [(seconds, chunk["text_output"]) for seconds, chunk in response.events()]
    num_tokens = num_words("".join(text for _, text in events))
    return Answer(expect(num_tokens, request.max_tokens), [seconds for seconds, _ in events])


def _tutorial_body(request: Request) -> dict[str, Any]:
    return {"inputs": [_tensor("text_input", "BYTES", request.prompt, 1, 1)]}


def _tutorial(request: Request, response: Response) -> Answer:
    """Its answer repeats the prompt, and is as long for everyone as the load's longest."""
    words = num_words(_outputs(response)["text_output"][0])
    return Answer(expect(words - request.num_prompt_tokens, OUTPUT_LENGTHS[-1]))


def _prompt_body(request: Request) -> dict[str, Any]:
    return {"prompt": request.prompt, "max_new_tokens": request.max_tokens}


def _prompt(request: Request, response: Response) -> Answer:
    text = json.loads(response.body())["generated_text"]
    return Answer(expect(num_words(text), request.max_tokens))


def _completions_body(request: Request) -> dict[str, Any]:
    """The server has one model, so it need not be named."""
    return {"prompt": request.prompt, "max_tokens": request.max_tokens, "temperature": 0}


def _completions(request: Request, response: Response) -> Answer:
    """The output must be as long as asked by the server's own count and by its words."""
    answer = json.loads(response.body())
    expect(num_words(answer["choices"][0]["text"]), request.max_tokens)
    return Answer(expect(answer["usage"]["completion_tokens"], request.max_tokens))


def _completions_stream_body(request: Request) -> dict[str, Any]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return {**_completions_body(request), **options}


def _completions_stream(request: Request, response: Response) -> Answer:
    texts, times, num_tokens = [], [], None
    for seconds, chunk in response.events():
        num_tokens = (chunk.get("usage") or {}).get("completion_tokens", num_tokens)
        text = "".join(choice["text"] for choice in chunk["choices"])
        if text:  # the last ones carry how it ended, and counts
            texts.append(text)
            times.append(seconds)
    if num_tokens is None:
        raise AnswerError("the stream ended without its count of tokens")
    expect(num_words("".join(texts)), request.max_tokens)
    return Answer(expect(num_tokens, request.max_tokens), times)


TARGETS = {
    "any-infer": Target(INFER, lambda request: request.prompt, _any_infer),
    "any-stream": Target(GENERATE_STREAM, lambda request: request.prompt, _any_stream),
    "in-flight": Target(INFER, _in_flight_body, _in_flight),
    "sse": Target(GENERATE_STREAM, _sse_body, _sse),
    "tutorial": Target(INFER, _tutorial_body, _tutorial),
    "prompt": Target("/generate", _prompt_body, _prompt),
    "completions": Target(COMPLETIONS, _completions_body, _completions),
    "completions-stream": Target(COMPLETIONS, _completions_stream_body, _completions_stream),
}
"""By name. ``any-...`` are sent ready bodies in the prompts' place."""
