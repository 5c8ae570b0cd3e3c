"""How each server is asked for an embedding over HTTP, and where in its answer that is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perf.encoders.check import MAX_MODEL_LEN, SIZE, Check, Embedding
from perf.load.closed_loop import AnswerError
from perf.load.requests import Request
from perf.load.targets import tensor

FLOAT32_COSINE, BFLOAT16_COSINE = 0.999, 0.99
MLSERVER_READ_EVERY = 64  # texts; to read one answer takes up to 0.1 s of the same cores


@dataclass(frozen=True)
class EncoderTarget:
    """One service: where it is asked, what it is sent, and how its answer is checked."""

    path: str
    body: Callable[[Request], dict[str, Any]]
    check: Callable[[Request, bytes, Check], None]
    """Raises ``AnswerError``."""
    min_cosine: float = FLOAT32_COSINE


def triton_body(request: Request) -> dict[str, Any]:
    """A text; one that is too long for the model is to be cut."""
    inputs = [tensor("text_input", "BYTES", request.prompt)]
    if request.num_prompt_tokens > MAX_MODEL_LEN:
        inputs.append(tensor("truncate", "BOOL", value=True))
    return {"inputs": inputs}


def check_triton(request: Request, body: bytes, check: Check) -> None:
    """``embedding`` is the only output."""
    check.embedding(request.index, json.loads(body)["outputs"][0]["data"])


def app_body(request: Request) -> dict[str, Any]:
    """What ``app.py`` takes."""
    return {"text": request.prompt}


def check_app(request: Request, body: bytes, check: Check) -> None:
    """What ``app.py`` gives."""
    check.embedding(request.index, json.loads(body)["embedding"])


def mlserver_body(request: Request) -> dict[str, Any]:
    """A text under the name that MLServer can batch: of ``args`` it would answer the first."""
    text = {
        **tensor("array_inputs", "BYTES", request.prompt),
        "parameters": {"content_type": "str"},
    }
    return {"inputs": [text]}


def check_mlserver(request: Request, body: bytes, check: Check) -> None:
    """It answers every token's vector, padding behind them where it batched: their mean is left to
    the client. All are counted, and some are read.
    """
    num_numbers = body.count(b", ") + 1
    if num_numbers < SIZE * request.num_prompt_tokens:
        raise AnswerError(f"got {num_numbers} numbers, expected {SIZE} a token")
    if request.index % MLSERVER_READ_EVERY == 0:
        check.embedding(request.index, mean_of_tokens(body, request.num_prompt_tokens))


def mean_of_tokens(body: bytes, num_tokens: int) -> Embedding:
    """Mean pooling of MLServer's answer, of length 1."""
    vectors = json.loads(json.loads(body)["outputs"][0]["data"][0])
    while len(vectors) == 1:  # a batch of one, one list of texts
        vectors = vectors[0]
    sums = [math.fsum(column) for column in zip(*vectors[:num_tokens], strict=True)]
    length = math.hypot(*sums)
    return [value / length for value in sums]


OURS, BFLOAT16, APP, MLSERVER, IN_PROCESS = "ours", "bfloat16", "fastapi", "mlserver", "in-process"
HTTP_TARGETS: Mapping[str, EncoderTarget] = {
    OURS: EncoderTarget("/v2/models/float32/infer", triton_body, check_triton),
    BFLOAT16: EncoderTarget(
        "/v2/models/bfloat16/infer", triton_body, check_triton, BFLOAT16_COSINE
    ),
    APP: EncoderTarget("/embed", app_body, check_app),
    MLSERVER: EncoderTarget("/v2/models/encoder/infer", mlserver_body, check_mlserver),
}
TARGETS = (*HTTP_TARGETS, IN_PROCESS)
