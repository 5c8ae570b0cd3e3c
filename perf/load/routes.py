"""The routes that the load generator knows, and how their answers are read: whole or as a stream of
server-sent events, their texts, tokens, and when each piece came.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf.load.requests import num_words

_END_OF_EVENTS = b"[DONE]"  # of OpenAI's API
_SHOWN = 300


class AnswerError(Exception):
    """An error or a wrong answer; it is counted, and the loop goes on."""


@dataclass(frozen=True)
class Sent:
    """One request's body. ``num_words`` is how long its answer's text must be, ``max_tokens`` how
    many tokens it must report; 0 where that is not known.
    """

    body: str
    max_tokens: int = 0
    num_words: int = 0


@dataclass(frozen=True)
class Response:
    """A whole answer: its bytes as they came, each piece with its time (perf_counter)."""

    status: int
    arrivals: Sequence[tuple[float, bytes]]

    def documents(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """The JSON of a whole answer, or of each event with the time of its last byte.

        Raises ``AnswerError``.
        """
        body = b"".join(data for _, data in self.arrivals)
        if self.status != 200:
            raise AnswerError(f"HTTP {self.status}: {body.decode('utf-8', 'replace')[:_SHOWN]}")
        if not body.lstrip().startswith(b"data:"):
            yield self.arrivals[-1][0] if self.arrivals else 0.0, json.loads(body or b"{}")
            return
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

    @property
    def is_stream(self) -> bool:
        return b"".join(data for _, data in self.arrivals[:2]).lstrip().startswith(b"data:")


@dataclass(frozen=True)
class Answer:
    """A right answer: its tokens, and when each piece of a streamed one came (perf_counter)."""

    num_output_tokens: int
    chunk_s: Sequence[float] = ()


def _tensors(document: Mapping[str, Any]) -> tuple[str, int | None]:
    """Of /infer's outputs, or of the flat JSON of /generate_stream."""
    flat = {each["name"]: each["data"] for each in document.get("outputs", ())} or document
    counted, text = flat.get("num_output_tokens"), flat.get("text_output", "")
    counted = sum(map(int, counted)) if isinstance(counted, list) else counted
    return str(text[0] if isinstance(text, list) else text), counted


def _completion(document: Mapping[str, Any]) -> tuple[str, int | None]:
    text = "".join(choice["text"] for choice in document["choices"])
    return text, (document.get("usage") or {}).get("completion_tokens")


def _generated(document: Mapping[str, Any]) -> tuple[str, int | None]:
    return document["generated_text"], None


@dataclass(frozen=True)
class Route:
    """Its path, in which {model} stands for the model's name, and the text and the number of tokens
    that a document of its answers tells.
    """

    path: str
    told: Callable[[Mapping[str, Any]], tuple[str, int | None]]

    def read(self, sent: Sent, response: Response) -> Answer:
        """Raises ``AnswerError`` where the answer is an error, or not as long as it must be."""
        texts, times, tokens = [], [], list[int]()
        for seconds, document in response.documents():
            text, counted = self.told(document)
            texts.append(text)
            tokens += [] if counted is None else [counted]
            if text or (
                counted and "choices" not in document
            ):  # OpenAI's last chunks say how it ended
                times.append(seconds)
        lengths = [(num_words("".join(texts)), sent.num_words)] if sent.num_words else []
        lengths += [(sum(tokens), sent.max_tokens)] if tokens and sent.max_tokens else []
        for got, expected in lengths:
            if got != expected:
                raise AnswerError(f"got {got} output tokens, expected {expected}")
        count = sum(tokens) if tokens else sent.max_tokens
        return Answer(count, times if response.is_stream else ())


ROUTES = {
    "infer": Route("/v2/models/{model}/infer", _tensors),
    "stream": Route("/v2/models/{model}/generate_stream", _tensors),
    "completions": Route("/v1/completions", _completion),
    "prompt": Route("/generate", _generated),
}
