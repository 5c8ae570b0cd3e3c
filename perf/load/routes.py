"""The HTTP routes of the load generator: how each builds requests and reads answers, whole or as
server-sent events, into texts, token counts and arrival times.
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
    """An answer that is an error or wrong; it is counted, and the loop continues."""


@dataclass(frozen=True)
class Sent:
    """One request's body. The answer must have ``num_words`` words and report ``max_tokens``
    tokens; 0 where the number is not known.
    """

    body: str
    max_tokens: int = 0
    num_words: int = 0


@dataclass(frozen=True)
class Response:
    """A complete answer as received: each chunk of bytes with its time (perf_counter)."""

    status: int
    arrivals: Sequence[tuple[float, bytes]]

    def documents(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """Parses a whole answer, or each event with the time of its last byte, as JSON. Raises
        ``AnswerError``.
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
    """A correct answer: its token count, and when each streamed chunk came (perf_counter)."""

    num_output_tokens: int
    chunk_s: Sequence[float] = ()


def _tensors(document: Mapping[str, Any]) -> tuple[str, int | None]:
    """Reads text and token count from /infer's outputs or /generate_stream's flat JSON."""
    flat = {each["name"]: each["data"] for each in document.get("outputs", ())} or document
    counted, text = flat.get("num_output_tokens"), flat.get("text_output", "")
    counted = sum(map(int, counted)) if isinstance(counted, list) else counted
    return str(text[0] if isinstance(text, list) else text), counted


def _completion(document: Mapping[str, Any]) -> tuple[str, int | None]:
    text = "".join(choice["text"] for choice in document["choices"])
    return text, (document.get("usage") or {}).get("completion_tokens")


@dataclass(frozen=True)
class Route:
    """A path, in which {model} stands for the model's name, and the function that reads text and
    token count from one JSON document of its answers.
    """

    path: str
    told: Callable[[Mapping[str, Any]], tuple[str, int | None]]

    def read(self, sent: Sent, response: Response) -> Answer:
        """Raises ``AnswerError`` where the answer is an error or has the wrong length."""
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
}
