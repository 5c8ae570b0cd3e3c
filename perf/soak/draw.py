"""Draws the valid requests of the soak: the same for the same seed and number, in any order.

What a greedy request must answer is known from a limited number of *cases* (a prompt and the
options that change which tokens follow), so that the reference is computed once for each and every
request is a cut of it. Seeded requests repeat a limited number of cases too. Knows no transport.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from perf.soak.prompts import EVERYDAY, UNICODE, chat, long_prompt
from perf.soak.request import (
    JSON,
    JSON_NAMES,
    JSON_TEXT,
    LISTS,
    OUTPUTS,
    PARAMETER,
    PARAMETERS_ONLY,
    TENSOR,
    Leave,
    Row,
    SoakRequest,
)

DEFAULT_MAX_TOKENS = 32  # of the served models, as a request without max_tokens shows
LONGEST_GREEDY = 64
CONTEXT = 1024  # tokens of the demo model
SLOTS = 64  # default of max_num_seqs
MODELS = ("demo", "batched", "padded")
_MODEL_WEIGHTS = (0.55, 0.35, 0.10)
BATCHED = ("batched", "padded")
MAX_ROWS = 8
STOP_WORDS = ("the", " a ", ".", "\n", "ing", "and", "User:", "🙂", "é", "never said", ", ")
_BAD_WORDS = ("the", "was", "and then", "happy", "🙂", "I")
_TO_ENGINE = {"generate": 0.1, "generate_stream": 0.9, "grpc_stream": 0.9}  # it takes no others
_TO_ENGINE = {"generate": 0.1, "generate_stream": 0.9, "grpc_stream": 0.9}
_FP32_EXACT = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


@dataclass(frozen=True)
class Case:
    """A prompt or a chat, and the options that decide which token follows which."""

    prompt: str
    messages: str
    options: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Tells cases apart."""
        return repr((self.prompt, self.messages, sorted(self.options.items())))


class Drawer:
    """The requests of one seed."""

    def __init__(self, seed: int, num_cases: int = 120) -> None:
        """``num_cases`` greedy ones, and as many seeded."""
        self.seed = seed
        rng = random.Random(f"{seed} cases")
        self.greedy = [_greedy_case(rng) for _ in range(num_cases)]
        self.seeded = [_seeded_case(rng) for _ in range(num_cases)]

    def rng(self, number: int) -> random.Random:
        """The random numbers of one request."""
        return random.Random(f"{self.seed} {number}")

    def valid(self, rng: random.Random, number: int) -> SoakRequest:
        """A request that must be answered."""
        kind = rng.choices(("greedy", "seeded", "sampled", "timed"), (0.6, 0.2, 0.12, 0.08))[0]
        model = rng.choices(MODELS, _MODEL_WEIGHTS)[0]
        way = _way(rng, model)
        num_rows = 1
        if model in BATCHED and way in ("infer", "grpc", "grpc_stream") and rng.random() < 0.5:
            num_rows = rng.randint(2, MAX_ROWS)
        n = rng.choice((2, 3, 4)) if rng.random() < 0.12 and num_rows <= 3 else 1
        rows = tuple(self._row(rng, kind, n) for _ in range(num_rows))
        request = SoakRequest(number, kind, way, model, rows, batched=model in BATCHED)
        return _completed(rng, replace(request, to_engine=rng.random() < _TO_ENGINE.get(way, 0.0)))

    def abandoned(self, rng: random.Random, number: int) -> SoakRequest:
        """A long request whose caller goes away."""
        model = rng.choices(MODELS, _MODEL_WEIGHTS)[0]
        way = _way(rng, model)
        length = rng.choice((100, 200, 400))
        options = {
            "max_tokens": length,
            "min_tokens": length,
            "temperature": rng.choice((0.0, 1.5)),
        }
        row = Row(rng.choice(EVERYDAY), options=options)
        request = SoakRequest(number, "abandoned", way, model, (row,), batched=model in BATCHED)
        if way.endswith("stream"):
            # A Triton of 24.10 never lets a model go that answers once, where the answer was on its
            # way into a gRPC stream that its caller cancelled: it can't be unloaded any more. See
            # https://github.com/triton-inference-server/server/pull/8078. No such model is ours to
            # mend, so these streams go to the engine.
            to_engine = way == "grpc_stream" or rng.random() < 0.8
            request = replace(_with_common(request, stream=True), to_engine=to_engine)
        return replace(_completed(rng, request), leave=_leave(rng, way))

    def _row(self, rng: random.Random, kind: str, n: int) -> Row:
        if kind == "seeded":
            case = rng.choice(self.seeded)
            return Row(case.prompt, case.messages, {**case.options, **({"n": n} if n > 1 else {})})
        if kind == "sampled":
            case = _seeded_case(rng)
            options = {name: value for name, value in case.options.items() if name != "seed"}
            return Row(case.prompt, case.messages, {**options, **({"n": n} if n > 1 else {})})
        case = rng.choice(self.greedy)
        return Row(case.prompt, case.messages, {**case.options, **_greedy_lengths(rng, n)})


def fills() -> list[SoakRequest]:
    """One request for each model that fills its engine: every slot, up to the end of the context.

    Memory that is given out as it is touched, such as that of keys and values, is touched then.
    """
    length = CONTEXT - 8
    options = {"max_tokens": length, "min_tokens": length, "temperature": 1.0, "n": SLOTS}
    row = Row("Once", options=options)
    return [
        SoakRequest(-1, "sampled", "grpc", model, (row,), batched=model in BATCHED)
        for model in MODELS
    ]


def _greedy_case(rng: random.Random) -> Case:
    options: dict[str, Any] = {}
    if rng.random() < 0.5:
        if rng.random() < 0.4:
            options["repetition_penalty"] = rng.choice((0.75, 1.25, 1.5))
        if rng.random() < 0.4:
            options["frequency_penalty"] = rng.choice((-0.5, 0.5, 1.5, 2.0))
        if rng.random() < 0.4:
            options["presence_penalty"] = rng.choice((-0.25, 0.75, 1.5))
        if rng.random() < 0.3:
            options["bad_words"] = rng.sample(_BAD_WORDS, rng.choice((1, 2)))
        if rng.random() < 0.2:
            options["ignore_eos"] = True
    return Case(*_prompt(rng), options)


def _seeded_case(rng: random.Random) -> Case:
    options: dict[str, Any] = {
        "seed": rng.choice((rng.getrandbits(16), rng.getrandbits(63))),
        "temperature": rng.choice(_FP32_EXACT),
        "max_tokens": rng.choice((1, 8, 24, 48)),
    }
    ranges: dict[str, tuple[Any, ...]] = {
        "top_k": (-1, 0, 5, 40, 5000),
        "top_p": (0.0, 0.5, 0.875, 1.0),
        "min_p": (0.0, 0.0625, 0.25),
        "repetition_penalty": (1.25,),
        "frequency_penalty": (-1.0, 0.5, 2.0),
        "presence_penalty": (-2.0, 1.0),
        "stop_words": (["."], [" the", "\n"]),
        "bad_words": (["the"], ["and then", "I"]),
        "min_tokens": (1,),
    }
    for name, values in ranges.items():
        if rng.random() < 0.25:
            options[name] = rng.choice(values)
    return Case(*_prompt(rng), options)


def _prompt(rng: random.Random) -> tuple[str, str]:
    """(prompt, "") or ("", messages)."""
    what = rng.random()
    if what < 0.15:
        return "", chat(rng)
    if what < 0.45:
        return rng.choice(EVERYDAY), ""
    if what < 0.65:
        return rng.choice(UNICODE) + rng.choice(("", " and", "\n")), ""
    if what < 0.72:
        return long_prompt(rng, rng.choice((100, 250))), ""
    return f"{rng.choice(EVERYDAY)} {rng.choice(UNICODE)} {rng.randint(0, 99)}", ""


def _greedy_lengths(rng: random.Random, n: int) -> dict[str, Any]:
    """Where the answer is cut, and ways to say greedy."""
    options: dict[str, Any] = {}
    max_tokens = DEFAULT_MAX_TOKENS
    if rng.random() < 0.95:
        max_tokens = min(LONGEST_GREEDY, 1 + int(rng.expovariate(1 / 18)))
        options["max_tokens"] = max_tokens
    if rng.random() < 0.2:
        options["min_tokens"] = rng.randint(0, max_tokens)
    if rng.random() < 0.3:
        options["stop_words"] = rng.sample(STOP_WORDS, rng.choice((1, 1, 2, 4)))
        if rng.random() < 0.3:
            options["include_stop_str_in_output"] = True
    if rng.random() < 0.2:
        options["logprobs"] = rng.choice((0, 1, 3, 20))
    if n > 1:
        options["n"] = n
    how = rng.random()
    if how < 0.1:
        options.update(top_k=1, temperature=2.0, seed=rng.getrandbits(31))
    elif n > 1 or how < 0.3:
        options["temperature"] = 0.0
    elif how < 0.35:
        options.update(top_p=rng.choice((0.0, 1.0)), beam_width=1, length_penalty=1.0)
    return options


def _way(rng: random.Random, model: str) -> str:
    ways = ("infer", "generate", "generate_stream", "grpc", "grpc_stream")
    weights = (0.2, 0.2, 0.2, 0.2, 0.2) if model == "demo" else (0.25, 0.15, 0.15, 0.25, 0.2)
    return rng.choices(ways, weights)[0]


def _completed(rng: random.Random, request: SoakRequest) -> SoakRequest:
    """Adds how it is answered, and where each option stands."""
    common: dict[str, Any] = dict(request.common)
    if rng.random() < 0.3:
        common["exclude_input_in_output"] = rng.random() < 0.5
    if request.kind == "timed":
        common["timeout_ms"] = rng.choice((1, 5, 20, 60, 200, 600))
        common["on_timeout"] = rng.choice(("partial", "partial", "error"))
    elif rng.random() < 0.1:
        common["timeout_ms"] = 600_000
    if request.way.endswith("stream") and "stream" not in common and rng.random() < 0.85:
        common["stream"] = True
    outputs: tuple[str, ...] = ()
    lists = request.kind != "timed" and request.way in ("infer", "grpc", "grpc_stream")
    if lists and rng.random() < 0.15:
        # All of them would be the same as none: a server of 24.10 tells no difference.
        others = rng.sample(OUTPUTS[1:], rng.randrange(len(OUTPUTS) - 1))
        outputs = ("text_output", *others)
    elif request.kind == "timed":
        common.update(return_finish_reason=True, return_num_output_tokens=True)
    else:
        wanted = [name for name in OUTPUTS[1:] if rng.random() < 0.5]
        common.update({f"return_{name}": True for name in wanted})
    if any("logprobs" in row.options for row in request.rows):
        outputs = ()  # a list of outputs would leave them out
    request = replace(request, common=common, outputs=outputs)
    return replace(request, places=_places(rng, request))


def _places(rng: random.Random, request: SoakRequest) -> dict[str, str]:
    """Rows with options of their own give them as JSON; a name of a batch that all have may be a
    tensor.
    """
    places = {}
    for name in request.common:
        places[name] = rng.choice((TENSOR, PARAMETER))
    for name in dict.fromkeys(name for row in request.rows for name in row.options):
        values: list[Any] = [row.options.get(name) for row in request.rows]
        ways = [JSON] if name in JSON_NAMES else []
        if name in JSON_NAMES and name not in LISTS:
            ways.append(JSON_TEXT)
        if None not in values and name not in PARAMETERS_ONLY:
            ways.append(TENSOR)
        one = all(value == values[0] for value in values)
        if one and (name not in LISTS or len(values[0]) == 1):
            ways.append(PARAMETER)
        places[name] = rng.choice(ways)
    return places


def _leave(rng: random.Random, way: str) -> Leave:
    what = rng.random()
    if way in ("infer", "generate", "generate_stream") and what < 0.15:
        return Leave("half")
    if way.endswith("stream") and what < 0.7:
        return Leave("close", after_chunks=rng.choice((1, 1, 2, 5, 20)))
    if way.startswith("grpc") and what < 0.85:
        return Leave("deadline", after_s=rng.choice((0.001, 0.02, 0.1, 0.4)))
    return Leave("close", after_s=rng.choice((0.0, 0.005, 0.05, 0.3)))


def _with_common(request: SoakRequest, **common: Any) -> SoakRequest:
    return replace(request, common={**request.common, **common})
