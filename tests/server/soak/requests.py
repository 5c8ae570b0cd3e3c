"""The random requests of the soak: the same for the same seed and number, in any order; and their
bytes. Sends nothing.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tritonclient.grpc import service_pb2

WAYS = ("infer", "generate", "generate_stream", "grpc", "grpc_stream")
MODELS, BATCHED = ("demo", "batched", "padded"), ("batched", "padded")
MALFORMED, ABANDONED = 0.1, 0.1
LONGEST_GREEDY, CONTEXT = 64, 1024  # tokens
PROMPTS = (
    *("Once upon a time", "I am going", "Hello", "How are you?", "a", " ", "\n\n", "The end"),
    *("Question: How many legs does a dog have?\nAnswer:", "Zoë said: 日本 🙂", "🙂🙃🙂🙃"),
    *("naïve café\n\n", "المعرفة قوة", "e\u0301 combining, \u200b zero width, \ufeff mark"),
    *("👩‍👩‍👧‍👦 family", "\u0000\u0001 control", "The old man went to the market " * 20),
)
STOP_WORDS = ("the", " a ", ".", "\n", "ing", "and", "🙂", "é", "never said", ", ")
_TYPES = {
    **dict.fromkeys(("text_input", "stop_words", "sampling_parameters", "on_timeout"), "BYTES"),
    **dict.fromkeys(("max_tokens", "min_tokens", "top_k", "n", "timeout_ms"), "INT32"),
    **dict.fromkeys(("temperature", "top_p", "repetition_penalty"), "FP32"),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), "FP32"),
    "seed": "UINT64",
    **dict.fromkeys(("stream", "return_finish_reason", "return_cumulative_logprob"), "BOOL"),
    **dict.fromkeys(("return_num_input_tokens", "return_num_output_tokens"), "BOOL"),
}
_FORMATS = {"INT32": "<i", "FP32": "<f", "UINT64": "<Q", "BOOL": "<?"}
# What must be refused, as JSON of sampling_parameters.
BAD_OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "max_tokens": (0, -1, 2**31, 10**40, "three", [3], {"a": 1}, 2.5, True, 1024),
    "min_tokens": (-1, 10**6),
    "temperature": (-1.0, float("nan"), float("inf"), "warm", 10**400, []),
    "top_p": (-0.1, 1.5),
    "top_k": (-2,),
    "repetition_penalty": (0.0, -1.0),
    "frequency_penalty": (2.5, -2.5),
    "seed": (2**64, 2.5),
    "n": (0, -1, 129),
    "logprobs": (-1, 21),
    "beam_width": (0, 2),
    "stop": (3, [3], {"a": "b"}, [None]),
    "stop_token_ids": (["x"], [-1], [2**40]),
    "logit_bias": ([1], {"a": 1}, {"999999": 1}),
    "guided_decoding": (3, {"json": 3}),
    "regex": ("((", 3),
    "max_tokns": (3,),
}
BAD_TEXTS = ("{", "[1]", '"a"', "null", "[" * 5000, '{"n": 1, "n": 1}', '{"stop": "\\ud800"}')
NOT_UTF_8 = (b"caf\xc3(", b"\xff", b"\xed\xa0\x80", b"Once \xf0\x9f")


@dataclass(frozen=True)
class Leave:
    """How a caller goes away: ``close`` (its connection, or its call) or ``deadline`` (gRPC's own)
    after some seconds, or ``half`` way through sending.
    """

    how: str
    after_s: float = 0.0


@dataclass(frozen=True)
class SoakRequest:
    """``kind``: ``greedy``, ``seeded``, ``timed``, ``abandoned`` or ``malformed``; ``options`` are
    of all prompts. ``to_engine``: it goes to the model that streams.
    """

    number: int
    kind: str
    way: str
    model: str
    prompts: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    to_engine: bool = False
    leave: Leave | None = None

    @property
    def served_name(self) -> str:
        return self.model + "_stream" * self.to_engine

    @property
    def num_choices(self) -> int:
        n: int = self.options.get("n", 1)
        return n


def drawn(seed: int, number: int, num_cases: int = 40) -> SoakRequest:
    """The request of a number; greedy and seeded ones are of so many cases each."""
    rng = random.Random(f"{seed} {number}")
    way, model = rng.choice(WAYS), rng.choices(MODELS, (0.5, 0.35, 0.15))[0]
    streams = way.endswith("stream")
    options: dict[str, Any] = {"stream": True} if streams and rng.random() < 0.85 else {}
    request = SoakRequest(number, "", way, model, (rng.choice(PROMPTS),), options)
    request = replace(request, to_engine=streams and rng.random() < 0.9)
    kind = rng.random()
    if kind < MALFORMED:
        return _malformed(rng, request)
    if kind < MALFORMED + ABANDONED:
        return _abandoned(rng, request)
    return _valid(rng, request, num_cases)


def fills() -> list[SoakRequest]:
    """Requests that fill each engine: every sequence, up to the end of the context. Memory that is
    given out as it is touched, such as that of keys and values, is touched then.
    """
    length = CONTEXT - 8
    options = {"max_tokens": length, "min_tokens": length, "temperature": 1.0}
    return [
        SoakRequest(-1, "fill", "grpc", model, ("Once",), {**options, "n": n})
        for model, n in zip(MODELS, (128, 128, 32), strict=True)
    ]


def _valid(rng: random.Random, request: SoakRequest, num_cases: int) -> SoakRequest:
    kind = rng.choices(("greedy", "seeded", "timed"), (0.7, 0.2, 0.1))[0]
    case = random.Random(f"{kind == 'seeded'} case {rng.randrange(num_cases)}")
    options, prompts = {**request.options}, [case.choice(PROMPTS)]
    if request.model in BATCHED and request.way in ("infer", "grpc", "grpc_stream"):
        prompts += [rng.choice(PROMPTS) for _ in range(rng.choice((0, 0, 1, 3)))]
    if kind == "seeded":
        prompts = prompts[:1]  # a choice's seed comes from its place in the request
        options |= {"seed": case.getrandbits(63), "temperature": case.choice((0.5, 1.0, 1.5))}
        options |= {"max_tokens": case.choice((1, 8, 24)), "top_k": case.choice((0, 5, 40))}
    else:
        if case.random() < 0.3:
            options["repetition_penalty"] = case.choice((0.75, 1.25, 1.5))
        if case.random() < 0.3:
            options["frequency_penalty"] = case.choice((-0.5, 0.5, 1.5))
        if case.random() < 0.3:
            options["presence_penalty"] = case.choice((-0.25, 0.75, 1.5))
        options["max_tokens"] = min(LONGEST_GREEDY, 1 + int(rng.expovariate(1 / 18)))
        if rng.random() < 0.2:
            options["min_tokens"] = rng.randint(0, options["max_tokens"])
        if rng.random() < 0.3:
            options["stop_words"] = rng.sample(STOP_WORDS, rng.choice((1, 2, 4)))
    if kind == "timed":
        options["timeout_ms"] = rng.choice((1, 5, 20, 60, 200, 600))
        options["on_timeout"] = rng.choice(("partial", "error"))
        options |= {"return_finish_reason": True, "return_num_output_tokens": True}
    else:
        if rng.random() < 0.15:
            options |= {"n": rng.choice((2, 3)), "temperature": options.get("temperature", 0.0)}
        wanted = ("finish_reason", "cumulative_logprob", "num_input_tokens", "num_output_tokens")
        options |= {f"return_{name}": True for name in wanted if rng.random() < 0.5}
    return replace(request, kind=kind, prompts=tuple(prompts), options=options)


def _abandoned(rng: random.Random, request: SoakRequest) -> SoakRequest:
    length = rng.choice((100, 200, 400))
    options = {**request.options, "max_tokens": length, "min_tokens": length}
    options["temperature"] = rng.choice((0.0, 1.5))
    if request.way == "grpc_stream":
        # A Triton of 24.10 never lets a model go that answers once, where the answer was on its way
        # into a gRPC stream that its caller cancelled: it can't be unloaded any more. See
        # https://github.com/triton-inference-server/server/pull/8078.
        request = replace(request, to_engine=True)
    after_s = rng.choice((0.0, 0.005, 0.05, 0.1, 0.3))
    leave = Leave("close", after_s)
    if request.way.startswith("grpc") and rng.random() < 0.5:
        leave = Leave("deadline", after_s + 0.001)
    elif not request.way.startswith("grpc") and rng.random() < 0.15:
        leave = Leave("half")
    return replace(request, kind="abandoned", options=options, leave=leave)


def _malformed(rng: random.Random, request: SoakRequest) -> SoakRequest:
    what, prompt, options = rng.random(), request.prompts[0], {**request.options}
    if what < 0.6:
        name = rng.choice(list(BAD_OPTIONS))
        options["sampling_parameters"] = json.dumps({name: rng.choice(BAD_OPTIONS[name])})
    elif what < 0.8:
        options["sampling_parameters"] = rng.choice(BAD_TEXTS)
    elif what < 0.9:
        prompt = rng.choice(NOT_UTF_8).decode("utf-8", "surrogateescape")
    else:
        prompt = "too long " * rng.choice((1000, 20_000))
    options.setdefault("max_tokens", 8)
    if "sampling_parameters" in options:
        del options["max_tokens"]  # given twice it would be refused for that
    return replace(request, kind="malformed", prompts=(prompt,), options=options)


def _tensors(request: SoakRequest) -> dict[str, list[list[Any]]]:
    """Rows of values by input."""
    num_rows = len(request.prompts)
    return {
        "text_input": [[prompt] for prompt in request.prompts],
        **{
            name: [value if isinstance(value, list) else [value]] * num_rows
            for name, value in request.options.items()
        },
    }


def _shape(request: SoakRequest, rows: list[list[Any]]) -> list[int]:
    width = len(rows[0])
    return [len(rows), width] if request.model in BATCHED else [width]


def http_message(request: SoakRequest) -> bytes:
    """A whole HTTP request: ``/infer`` with tensors, else flat JSON."""
    if request.way == "infer":
        inputs = [
            {
                "name": name,
                "datatype": _TYPES[name],
                "shape": _shape(request, rows),
                "data": [value for row in rows for value in row],
            }
            for name, rows in _tensors(request).items()
        ]
        asked: dict[str, Any] = {"inputs": inputs}
    else:
        asked = {"text_input": request.prompts[0], **request.options}
    text = json.dumps(asked, ensure_ascii=request.number % 2 == 0 and request.kind != "malformed")
    body = text.encode("utf-8", "surrogateescape")
    path = f"/v2/models/{request.served_name}/{request.way}"
    head = f"POST {path} HTTP/1.1\r\nHost: triton\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def grpc_message(request: SoakRequest) -> Any:
    """A ModelInferRequest."""
    message = service_pb2.ModelInferRequest(model_name=request.served_name)
    for name, rows in _tensors(request).items():
        message.inputs.add(name=name, datatype=_TYPES[name], shape=_shape(request, rows))
        values = [value for row in rows for value in row]
        message.raw_input_contents.append(b"".join(_raw(_TYPES[name], one) for one in values))
    if request.way == "grpc_stream":
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    return message


def _raw(datatype: str, value: Any) -> bytes:
    if datatype != "BYTES":
        return struct.pack(_FORMATS[datatype], value)
    text: bytes = value.encode("utf-8", "surrogateescape")
    return struct.pack("<I", len(text)) + text
