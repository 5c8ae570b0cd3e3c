"""Draws the malformed requests of the soak, each a valid one with one thing wrong with it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from perf.soak.damage import FLAT_DAMAGE, GRPC_DAMAGE, HTTP_DAMAGE, INFER_DAMAGE
from perf.soak.draw import BATCHED, CONTEXT, MODELS
from perf.soak.prompts import EVERYDAY, long_prompt
from perf.soak.request import JSON, JSON_TEXT, PARAMETER, TENSOR, Row, SoakRequest

NAN, INF = float("nan"), float("inf")
# The option, values that are refused, and where they can stand.
_ANYWHERE = (TENSOR, PARAMETER, JSON, JSON_TEXT)
_LOOSE = (PARAMETER, JSON, JSON_TEXT)
_UNTYPED = (PARAMETER, JSON)
BAD_OPTIONS: tuple[tuple[str, tuple[Any, ...], tuple[str, ...]], ...] = (
    ("max_tokens", (0, -1, -(2**31), 2**31 - 1, CONTEXT), _ANYWHERE),
    ("max_tokens", (2**31, 2**63 - 1), _LOOSE),
    ("max_tokens", (10**40, "three", [3], {"a": 1}, 2.5, True, "", "1e3"), (JSON,)),
    ("max_tokens", (2.5, True), (PARAMETER,)),
    ("min_tokens", (-1, 9), _ANYWHERE),
    ("temperature", (-1.0, -0.001, NAN, INF, -INF), _ANYWHERE),
    ("temperature", ("warm", False), _UNTYPED),
    ("temperature", (10**400, [], {}), (JSON,)),
    ("top_p", (-0.1, 1.5, NAN, INF), _ANYWHERE),
    ("top_k", (-2, -(2**31)), _ANYWHERE),
    ("min_p", (-0.5, 1.5), _LOOSE),
    ("repetition_penalty", (0.0, -1.0, NAN, INF), _ANYWHERE),
    ("frequency_penalty", (2.5, -2.5, NAN), _ANYWHERE),
    ("presence_penalty", (2.5, -2.5, INF), _ANYWHERE),
    ("seed", (-2, -(2**62)), (PARAMETER,)),
    ("seed", (2**64, -(2**63) - 1, 2.5), (JSON, JSON_TEXT)),
    ("n", (0, -1, 129, 2**31 - 1), _ANYWHERE),
    ("logprobs", (-1, 21, 10**6), _LOOSE),
    ("beam_width", (0, 2), _ANYWHERE),
    ("length_penalty", (0.5, NAN), _ANYWHERE),
    ("timeout_ms", (0, -5), (TENSOR, PARAMETER)),
    ("on_timeout", ("later", ""), (TENSOR, PARAMETER)),
    ("exclude_input_in_output", (1, "yes"), (PARAMETER,)),
    ("return_logprobs", ("yes", 0), (PARAMETER,)),
    ("stream", ("yes", 1), (PARAMETER,)),
    ("ignore_eos", (3, [1]), (JSON,)),
    ("stop_words", (3, [3], {"a": "b"}, [None]), (JSON,)),
    ("stop_token_ids", (3, ["x"], [-1], [2**40]), (JSON,)),
    ("logit_bias", ([1], {"a": 1}, {"-1": 1}, {"5": 1000}, {"999999": 1}), (JSON,)),
    ("best_of", (3,), (JSON,)),
    ("use_beam_search", (True,), (JSON,)),
    ("guided_decoding", (3, {"json": 3}, {"grammar": "x"}), (JSON,)),
    ("json_schema", ("{", "[]", '{"type": "strin"}', 3), (JSON,)),
    ("regex", ("((", "(?=a)", 3), (JSON,)),
    ("choice", ([], ["a", "a"], [3], "a"), (JSON,)),
    ("max_tokns", (3,), _UNTYPED),
    ("prompt", ("Once",), _UNTYPED),
    ("__class__", (1,), _UNTYPED),
)
BAD_SAMPLING = (
    *("{", "[1]", "3", '"a"', "null", "{'a': 1}", '{"n": 1', '{"n": 1} x', "\x00", "[" * 5000),
    *('{"a":' * 3000, '{"n": 1, "n": 1}', '{"max_tokens": ' + "9" * 5000 + "}"),
    *('{"temperature": NaN}', '{"temperature": Infinity}', '{"temperature": 1e999}'),
    *('{"stop": "\\ud800"}', '{"": 1}'),
)
BAD_MESSAGES = (
    *("{", "{}", "[]", "[3]", "[{}]", "null", "[" * 5000, '[{"role": "user"}]'),
    *('[{"role": 3, "content": "a"}]', '[{"role": "user", "content": 3}]'),
    *('[{"role": "wizard", "content": "a"}]', '[{"role": "user", "content": [{"type": "image"}]}]'),
    *('[{"role": "user", "content": "\\ud83d"}]', '[{"role": "", "content": "a"}]'),
)
NOT_UTF_8 = (b"caf\xc3(", b"\xff", b"\xed\xa0\x80", b"Once \xf0\x9f", b"\xc0\x80")

_REFUSED = (400,)
Make = Callable[[random.Random, SoakRequest], SoakRequest]


def malformed(rng: random.Random, number: int) -> SoakRequest:
    """A request that must be refused; its ``label`` says why."""
    model = rng.choices(MODELS, (0.5, 0.4, 0.1))[0]
    way = rng.choice(("infer", "generate", "generate_stream", "grpc", "grpc_stream"))
    base = SoakRequest(
        number,
        "malformed",
        way,
        model,
        (Row(rng.choice(EVERYDAY), options={"max_tokens": 8}),),
        places={"max_tokens": TENSOR},
        batched=model in BATCHED,
        allowed=_REFUSED,
    )
    if way.endswith("stream"):
        places = {**base.places, "stream": TENSOR}
        base = replace(base, common={"stream": True}, places=places, to_engine=number % 3 > 0)
    makers: tuple[tuple[Make, float], ...] = (
        (_bad_option, 0.4),
        (_bad_text, 0.25),
        (_damaged, 0.35),
    )
    make = rng.choices([make for make, _ in makers], [weight for _, weight in makers])[0]
    return make(rng, base)


def _bad_option(rng: random.Random, base: SoakRequest) -> SoakRequest:
    name, values, where = rng.choice(BAD_OPTIONS)
    value, place = rng.choice(values), rng.choice(where)
    places = {**base.places, name: place}
    label = f"{name}={str(value)[:20]} as {place}"
    if name in ("timeout_ms", "on_timeout", "exclude_input_in_output", "return_logprobs", "stream"):
        return replace(base, common={**base.common, name: value}, places=places, label=label)
    row = Row(base.rows[0].prompt, options={**base.rows[0].options, name: value})
    return replace(base, rows=(row,), places=places, label=label)


def _bad_text(rng: random.Random, base: SoakRequest) -> SoakRequest:
    """What is wrong with a text: the prompt, the chat, or the JSON of the options."""
    prompt = rng.choice(EVERYDAY)
    chat = '[{"role": "user", "content": "Hello"}]'
    tools = '[{"type": "function", "function": {"name": "now"}}]'
    what = rng.randrange(8)
    if what == 0:
        return _with(base, "no text", Row(""))
    if what == 1:
        text = rng.choice(NOT_UTF_8).decode("utf-8", "surrogateescape")
        if rng.random() < 0.7:
            return _with(base, "not UTF-8", Row(text))
        return _with(base, "stop word not UTF-8", Row(prompt), stop_words=[text])
    if what == 2:
        words = rng.choice((2000, 20_000, 200_000))
        return _with(base, f"prompt of {words} words", Row(long_prompt(rng, words)))
    if what == 3:
        text = rng.choice(BAD_SAMPLING)
        return _with(base, f"sampling {text[:12]!r}", Row(prompt), sampling_parameters=text)
    if what == 4:
        text = rng.choice(BAD_MESSAGES)
        return _with(base, f"messages {text[:30]!r}", Row("", text))
    if what == 5:
        return _with(base, "text and messages", Row(prompt, chat))
    if what == 6:
        return _with(base, "tools that are not taken", Row("", chat), tools=tools)
    kwargs = rng.choice(("{", "[]", '{"nonsense": 1}', '{"add_generation_prompt": 3}'))
    return _with(base, f"template {kwargs!r}", Row("", chat), chat_template_kwargs=kwargs)


def _with(base: SoakRequest, label: str, row: Row, **common: Any) -> SoakRequest:
    places = {**base.places, **dict.fromkeys(common, TENSOR)}
    return replace(base, label=label, rows=(row,), common={**base.common, **common}, places=places)


def _damaged(rng: random.Random, base: SoakRequest) -> SoakRequest:
    if base.way.startswith("grpc"):
        name = rng.choice(sorted(GRPC_DAMAGE))
        base = replace(base, allowed=(400, 404))
    elif rng.random() < 0.4:
        name = rng.choice(sorted(HTTP_DAMAGE))
        base = replace(base, allowed=HTTP_DAMAGE[name].allowed)
        if HTTP_DAMAGE[name].way:
            base = replace(base, way=HTTP_DAMAGE[name].way, common={}, to_engine=False)
    else:
        damage = INFER_DAMAGE if base.way == "infer" else FLAT_DAMAGE
        name = rng.choice(sorted(damage))
        base = replace(base, allowed=(400, 404))
    return replace(base, damage=name, label=name)
