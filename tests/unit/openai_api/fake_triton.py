"""A Triton of one process and no models: answers over gRPC as the text-generation models do.

Its model repeats the prompt: word by word, each a token, at most ``max_tokens``. A prompt that
begins with ``!`` makes it fail or wait. How its answers are to be read is what the chat template is
told as ``chat_format``.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from hf_triton.ports.openai.triton.tensors import pack, unpack
from hf_triton.runtime.request.request_parameters import CALL

ERRORS = {
    "!400": (grpc.StatusCode.INVALID_ARGUMENT, "top_k: got -7, allowed: 0 or more"),
    "!500": (grpc.StatusCode.INTERNAL, "internal error: ZeroDivisionError"),
    "!503": (grpc.StatusCode.UNAVAILABLE, "the queue is full: try again later"),
    "!schema": (
        grpc.StatusCode.INVALID_ARGUMENT,
        "json_schema: too complex, allowed: a simpler one",
    ),
    "!plain": (
        grpc.StatusCode.INVALID_ARGUMENT,
        "messages: this model has no chat template; send text_input",
    ),
}

MOST_CHOICES = 128
NO_IMAGE = b"none"
NO_ANSWER = b"no answer"  # a sound that a stream ends at without a response
SPEECH = "automatic-speech-recognition"
SEGMENTS = [
    {"start": 0.0, "end": 1.5, "text": " One."},
    {"start": 1.5, "end": 3661.25, "text": " Two."},
]
NUMBERS = {
    "seek": 0,
    "tokens": [5, 6],
    "temperature": 0.0,
    "avg_logprob": -0.5,
    "compression_ratio": 0.8,
    "no_speech_prob": 0.01,
}
EMBEDDING_ERRORS = {
    "!400": (
        grpc.StatusCode.INVALID_ARGUMENT,
        "text_input: got 900 tokens, this model takes at most 512; send truncate: true to cut it",
    ),
}


class RefusedError(Exception):
    """The status and the text that a request fails with."""


def _labelled(request: Any, error: tuple[Any, str]) -> tuple[Any, str]:
    """The status and text, which names the request as the models' texts do."""
    status, text = error
    return status, f"[request id: {request.id}] {text}"


def _unknown(model: str) -> str:
    return f"Request for unknown model: '{model}' has no available versions"


AWAY = "the engine echo_stream went away before it answered: try again"


@dataclass(frozen=True)
class Model:
    """One folder of the repository."""

    name: str
    role: str | None
    max_batch_size: int = 0
    task: str = "text-generation"
    adapters: str | None = None
    served_names: str = ""
    inputs: tuple[tuple[str, str, int], ...] = ()

    def config(self) -> Any:
        config = model_config_pb2.ModelConfig(name=self.name, max_batch_size=self.max_batch_size)
        config.model_transaction_policy.decoupled = self.role == "engine"
        for name, of_type, size in self.inputs:
            config.input.add(name=name, data_type=of_type, dims=[size], optional=True)
        if self.role:
            config.parameters["hf_triton_task"].string_value = self.task
            config.parameters["hf_triton_role"].string_value = self.role
        if self.adapters is not None:
            config.parameters["hf_triton_adapters"].string_value = self.adapters
        if self.served_names:
            config.parameters["hf_triton_served_names"].string_value = self.served_names
        return config


@dataclass
class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """``seen`` are the inputs of each request by name; ``shapes`` theirs; ``cancelled`` the prompts
    of those whose callers left, ``left`` those that it was told so of by files whose paths begin
    with ``abandoned_requests``. An error comes once ``num_waiting_at_errors`` requests wait. The
    next ``num_away`` requests find no engine; only while it ``waits`` some are not answered.
    """

    models: dict[str, Model] = field(default_factory=dict)
    seen: list[dict[str, Any]] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    encoder_requests: list[Any] = field(default_factory=list)
    most_answered: int = 10**6
    num_waiting_at_errors: int = 0
    num_waiting: int = 0
    abandoned_requests: str = ""
    left: list[str] = field(default_factory=list)
    num_indexed: int = 0
    num_away: int = 0
    waits: bool = True

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerLiveResponse(live=True)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        assert not request.name
        self.num_indexed += 1
        answer = service_pb2.ModelStatisticsResponse()
        for name in self.models:
            answer.model_stats.add(name=name, version="1")
        return answer

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.name not in self.models:
            text = f"Request for unknown model: '{request.name}' is not found"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return service_pb2.ModelConfigResponse(config=self.models[request.name].config())

    def _trace(self, context: Any) -> None:
        metadata = dict(context.invocation_metadata())
        self.traces += [
            metadata[name] for name in ("traceparent", "tracestate") if name in metadata
        ]

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._trace(context)
        try:
            [answer] = [one async for one in self._answers(request, streams=False)]
        except RefusedError as error:
            await context.abort(*error.args)
        return answer

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        assert "triton_grpc_error" not in dict(context.invocation_metadata())
        self._trace(context)
        async for request in requests:
            try:
                async for answer in self._answers(request, streams=True):
                    yield service_pb2.ModelStreamInferResponse(infer_response=answer)
            except RefusedError as error:
                yield service_pb2.ModelStreamInferResponse(error_message=error.args[1])
                if error.args[1] == AWAY:
                    return

    async def _answers(self, request: Any, *, streams: bool) -> AsyncIterator[Any]:
        """Raises RefusedError, which may come behind answers."""
        self.num_away -= 1
        if self.num_away >= 0:
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, AWAY)
        model = self.models.get(request.model_name)
        if model is None:
            raise RefusedError(grpc.StatusCode.NOT_FOUND, _unknown(request.model_name))
        whole = {
            None: self._count,
            "feature-extraction": self._embed,
            "text-classification": self._classify,
            SPEECH: self._hear,
        }.get(model.role and model.task)
        if whole:
            answer = await whole(request)
            if answer is not None:
                yield answer
            return
        inputs = self._note(request)
        if "tokenizer" in inputs:
            yield _tokenized(inputs, request)
            return
        prompt, error = _prompt(inputs), _error(inputs)
        if error:
            await self._let_others_begin()
            raise RefusedError(*_labelled(request, error))
        if not streams:
            await self._wait(prompt, inputs)
        for chunk in _chunks(inputs if streams else {**inputs, "stream": False}, request):
            yield chunk
        if prompt.endswith("!fails"):
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, "the engine died: try again later")
        if streams:
            await self._wait(prompt, inputs)

    async def _count(self, request: Any) -> Any:
        """Each of the ``words`` and the ``times`` that it is wanted, as JSON, and a score."""
        given = _inputs(request)
        inputs: dict[str, Any] = {
            name: one if name == "words" else one[0] for name, one in given.items()
        }
        self.shapes += [list(one.shape) for one in request.inputs]
        self.seen.append(inputs)
        if inputs.get("times", 0) < 0:
            text = f"times: got {inputs['times']}, allowed: 0 or more"
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, text)
        counted = [{"word": word, "times": inputs.get("times", 1)} for word in inputs["words"]]
        return _answer(
            request,
            output=("BYTES", [1], [json.dumps(counted)]),
            score=("FP32", [2], [0.5, float("nan")]),
        )

    async def _embed(self, request: Any) -> Any:
        """Embeds each text as its length, its first character's code and a half; of a pair the
        score is the product of both; words have weights, and tokens vectors, as many as words.
        """
        self.ids.append(request.id)
        self.encoder_requests.append(request)
        given = _inputs(request)
        texts = next(iter(given.values()))
        listed = {one.name for one in request.outputs}
        for text in texts:
            if text in ERRORS:
                await self._let_others_begin()
                error = EMBEDDING_ERRORS.get(text, ERRORS[text])
                raise RefusedError(*_labelled(request, error))
            await self._wait(text, {CALL: request.parameters[CALL].string_param})
        counts = [len(text.split()) for text in texts]
        rows = [(len(text), ord(text[:1] or "\0"), 0.5) for text in texts[: self.most_answered]]
        found: dict[str, Any] = {
            "embedding": ("FP32", [len(texts), 3], [one for row in rows for one in row])
        }
        if "score" in listed:
            pairs = zip(texts, given["text_pair"], strict=True)
            found = {"score": ("FP32", [len(texts), 1], [len(a) * len(b) for a, b in pairs])}
        if "weights" in listed:
            shape, filled = [len(texts), 2], [n for count in counts for n in (count, 0)]
            found = {"token_ids": ("INT32", shape, filled), "weights": ("FP32", shape, filled)}
        if "token_embeddings" in listed:
            vectors = [
                1.0 if n < count else 0.0 for count in counts for n in range(3) for _ in "ab"
            ]
            found = {"token_embeddings": ("FP32", [len(texts), 3, 2], vectors)}
        return _answer(request, **found, num_input_tokens=("UINT32", [len(texts)], counts))

    async def _classify(self, request: Any) -> Any:
        """Gives each pair as its logit the number of shared words, and half of that as its score;
        ``labels`` has three labels, of which the last is the best.
        """
        self.ids.append(request.id)
        self.encoder_requests.append(request)
        given = _inputs(request)
        texts = given.get("input_text") or given["text_input"]
        pairs = given.get("text_pair", [""] * len(texts))
        factor = 1.0 if "function_to_apply" in given else 0.5
        both = list(zip(texts, pairs, strict=True))
        logits = [[float(len({*text.split()} & {*pair.split()}))] for text, pair in both]
        names = ["RELEVANT"]
        if request.model_name == "labels":
            logits, names = [[0.0, 1.0, float(len(text))] for text in texts], ["c", "b", "a"]
        shape = [len(texts), len(names)]
        scores = [factor * one for row in logits for one in sorted(row)[::-1]]
        counts = [len(f"{text} {pair}".split()) for text, pair in both]
        return _answer(
            request,
            label=("BYTES", shape, names * len(texts)),
            score=("FP32", shape, scores),
            logits=("FP32", shape, [one for row in logits for one in row]),
            num_input_tokens=("UINT32", [len(texts), 1], counts),
        )

    async def _hear(self, request: Any) -> Any:
        """An answer of two segments."""
        inputs = {name: one[0] for name, one in _inputs(request).items()}
        parameters = {name: one.string_param for name, one in request.parameters.items()}
        self.seen.append({**inputs, **parameters, "model": request.model_name})
        self.shapes += [list(tensor.shape) for tensor in request.inputs]
        self.ids.append(request.id)
        if inputs["audio"] == NO_IMAGE:
            text = "audio: 4 bytes that are not a sound; allowed: WAV, FLAC, OGG, MP3"
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, text)
        if inputs["audio"] == NO_ANSWER:
            return None
        is_verbose = inputs.get("return_timestamps") == "verbose"
        more = NUMBERS if is_verbose else {}
        segments = [{**one, **more} for one in SEGMENTS if "return_timestamps" in inputs]
        return _answer(
            request,
            text_output=("BYTES", [1], [" One. Two."]),
            segments=("BYTES", [1], [json.dumps(segments)]),
            language=("BYTES", [1], ["french" if is_verbose else "fr"]),
            duration=("FP32", [1], [3.5]),
        )

    def _note(self, request: Any) -> dict[str, Any]:
        assert request.model_name in self.models
        self.ids.append(request.id)
        inputs: dict[str, Any] = {
            name: one if name in ("image", "audio") or len(one) > 1 else one[0]
            for name, one in _inputs(request).items()
        }
        inputs["sampling_parameters"] = json.loads(inputs.get("sampling_parameters", "{}"))
        inputs.update({name: one.string_param for name, one in request.parameters.items()})
        seen = {name: value for name, value in inputs.items() if name != CALL}
        self.seen.append({**seen, "model": request.model_name})
        self.shapes += [list(tensor.shape) for tensor in request.inputs]
        return inputs

    async def _let_others_begin(self) -> None:
        while self.num_waiting < self.num_waiting_at_errors:
            await asyncio.sleep(0.01)

    async def _wait(self, prompt: str, inputs: Mapping[str, Any]) -> None:
        if not prompt.endswith("!waits") or not self.waits:
            return
        self.num_waiting += 1
        name = inputs.get(CALL, "").partition("-")[0]
        file = Path(f"{self.abandoned_requests}{name}")
        try:
            while not file.is_file():
                await asyncio.sleep(0.01)
            self.left.append(prompt)
        except asyncio.CancelledError:
            self.cancelled.append(prompt)
            raise
        finally:
            self.num_waiting -= 1


def _inputs(request: Any) -> dict[str, list[Any]]:
    """The elements of each input; files are bytes."""
    return {
        one.name: _files(data) if one.name in ("image", "audio") else unpack(one.datatype, data)
        for one, data in zip(request.inputs, request.raw_input_contents, strict=True)
    }


def _files(data: bytes) -> list[bytes]:
    files = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        files.append(data[4 : 4 + length])
        data = data[4 + length :]
    return files


def _answer(request: Any, **outputs: tuple[str, list[int], list[Any]]) -> Any:
    """An answer of those outputs that are asked for: data type, shape and elements."""
    answer = service_pb2.ModelInferResponse(
        model_name=request.model_name, model_version="1", id=request.id
    )
    for name in [one.name for one in request.outputs] or outputs:
        datatype, shape, elements = outputs[name]
        answer.outputs.add(name=name, datatype=datatype, shape=shape)
        answer.raw_output_contents.append(pack(datatype, elements))
    return answer


def _error(inputs: dict[str, Any]) -> tuple[Any, str] | None:
    """An image that is none, or an error that the prompt asks for."""
    for number, file in enumerate(inputs.get("image", ())):
        if file == NO_IMAGE:
            text = f"image[{number}]: {len(file)} bytes that are not an image"
            return grpc.StatusCode.INVALID_ARGUMENT, text
    n = inputs["sampling_parameters"].get("n", 1)
    if not 1 <= n <= MOST_CHOICES:
        return grpc.StatusCode.INVALID_ARGUMENT, f"n: got {n}, allowed: 1 to {MOST_CHOICES}"
    return ERRORS.get(_prompt(inputs))


def _prompt(inputs: dict[str, Any]) -> str:
    if "messages" in inputs:
        return str(json.loads(inputs["messages"])[-1].get("content"))
    if "input_ids" in inputs:
        ids = inputs["input_ids"]
        return " ".join(map(str, ids if isinstance(ids, list) else [ids]))
    return str(inputs["text_input"])


def _tokenized(inputs: dict[str, Any], request: Any) -> Any:
    """Words are tokens, by their lengths."""
    ask, words = json.loads(inputs["tokenizer"])["ask"], _prompt(inputs).split(" ")
    tokens = {"count": len(words), "max_model_len": 99, "tokens": [*map(len, words)]}
    told: dict[str, dict[str, Any]] = {
        "tokenize": {**tokens, "token_strs": None},
        "detokenize": {"prompt": _prompt(inputs)},
    }
    return _response(request, [json.dumps(told[ask])], ["stop"], len(words), [[]], [], "")


def _chunks(inputs: dict[str, Any], request: Any) -> list[Any]:
    """Every choice repeats the prompt; the first of several is a word ahead in a stream."""
    parameters = inputs["sampling_parameters"]
    n = parameters.get("n", 1)
    words = _prompt(inputs).split(" ")
    most = min(parameters.get("max_tokens", 99), 99)
    ended = "length" if len(words) > most else "stop"
    if "!late" in words:
        ended = "timeout"
    words = words[:most]
    tokens = _words(" ".join(words))
    prefix = "" if inputs["exclude_input_in_output"] else _prompt(inputs)
    goes_on = bool(tokens) and tokens[-1].endswith(("!waits", "!fails"))
    if inputs["stream"] is False or not tokens:
        rows = [[tokens] * n]
    else:
        rows = [
            [[token]] + [tokens[at - 1 : at] if at else []] * (n - 1)
            for at, token in enumerate(tokens)
        ]
        if n > 1:
            rows.append([[], *[tokens[-1:]] * (n - 1)])
    chat_format = json.dumps(
        json.loads(inputs.get("chat_template_kwargs", "{}")).get("chat_format", {})
    )
    chunks = []
    for at, row in enumerate(rows):
        reasons = []
        for choice in range(n):
            is_last = at >= len(rows) - (2 if choice == 0 and len(rows) > 1 and n > 1 else 1)
            reasons.append(ended if is_last and not goes_on else "")
        texts = [("" if at else prefix) + "".join(choice) for choice in row]
        told = [] if at else _words(_prompt(inputs))
        chunks.append(_response(request, texts, reasons, len(words) + 3, row, told, chat_format))
    return chunks


def _words(text: str) -> list[str]:
    return [word if at == 0 else f" {word}" for at, word in enumerate(text.split(" ")) if word]


def _response(
    request: Any,
    texts: list[str],
    reasons: list[str],
    num_input: int,
    tokens: list[list[str]],
    prompt: list[str],
    chat_format: str,
) -> Any:
    told = [_logprobs(token) for token in prompt]
    if told:
        told[0] = {"5": {"logprob": None, "rank": None, "decoded_token": prompt[0]}}
    size = [len(texts)]
    return _answer(
        request,
        text_output=("BYTES", size, texts),
        finish_reason=("BYTES", size, reasons),
        num_input_tokens=("UINT32", size, [num_input]),
        num_output_tokens=("UINT32", size, [len(choice) for choice in tokens]),
        chat_format=("BYTES", size, [chat_format]),
        logprobs=("BYTES", size, [json.dumps([_logprobs(t) for t in c]) for c in tokens]),
        prompt_logprobs=("BYTES", size, [json.dumps(told)]),
        num_cached_tokens=("UINT32", size, [2]),
    )


def _logprobs(token: str) -> dict[str, Any]:
    """The sampled token is the second likeliest; a third one reads like the first."""
    return {
        "5": {"logprob": -1.5, "rank": 2, "decoded_token": token},
        "6": {"logprob": -0.5, "rank": 1, "decoded_token": "\ufffd"},
        "7": {"logprob": -9999.0, "rank": 3, "decoded_token": "\ufffd"},
    }
