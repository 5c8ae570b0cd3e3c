"""The options of a request, a row each, for every API. Standard library only: the generator reads
it too. ``python -m tests.unit.requests.options_page`` makes the table of docs/requests.md.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

_MOST = sys.float_info.max
_ANY = (0, math.inf)


@dataclass(frozen=True)
class Option:
    """An option as a tensor of the type ``tensor``, as a parameter of Triton's, ``in_json``
    (``sampling_parameters``, vLLM's names) and ``in_openai`` (a field of OpenAI's API). The last
    two and vLLM name it ``called``, SamplingParams ``param``, where that differs. A ``default`` of
    None is the model's own, or none.

    ``says`` is its sentence in the docs, ``by_default`` a default in words. ``kind`` is the check
    of that name in OpenAI's API. Numbers lie within ``bounds``, in words ``ranges``; lists have at
    most ``most`` elements. ``neutral`` values change nothing, the last of them in vLLM too; beam
    search takes them alone. ``filters`` cut the distribution that tokens are drawn from.
    ``to_vllm`` is passed on as it is.
    """

    kind: str
    says: str
    default: Any = None
    tensor: str = ""
    is_parameter: bool = True
    in_json: bool = True
    in_openai: bool = True
    called: str = ""
    param: str = ""
    by_default: str = ""
    bounds: tuple[float, float] | None = None
    ranges: str = ""
    most: int | None = None
    neutral: tuple[Any, ...] = ()
    filters: bool = False
    to_vllm: bool = False

    @property
    def dims(self) -> list[int]:
        return [-1 if self.kind == "texts" else 1]

    @property
    def allowed(self) -> str:
        if self.ranges or self.bounds is None:
            return self.ranges
        low, high = self.bounds
        return f"{low} and more" if high == math.inf else f"{low} to {high}"


_integer = partial(Option, "integer", tensor="INT32")
_number = partial(Option, "number", tensor="FP32")
_seed = partial(Option, "integer", tensor="UINT64", by_default="random")
_boolean = partial(Option, "boolean")
_flag = partial(_boolean, default=False, tensor="BOOL", in_json=False, in_openai=False)
_output = partial(_flag, "true adds that output")
_text = partial(Option, "text", tensor="STRING", in_openai=False)
_texts = partial(Option, "texts", default=(), tensor="STRING")
# Options that have neither a tensor nor a parameter.
_listed = partial(Option, is_parameter=False)
_penalty = partial(
    _number,
    "makes tokens of the output less likely",
    0.0,
    bounds=(-2, 2),
    neutral=(0,),
    to_vllm=True,
)
_ids = partial(_listed, "integers", default=(), bounds=_ANY, neutral=((),))
_logprobs = partial(Option, "integer", in_openai=False, bounds=(0, 20), to_vllm=True)
_FORCED = "the output must match; one of these: [structured-output.md](structured-output.md)"
OPTIONS: dict[str, Option] = {
    "stream": _flag("true: one response for each piece, on `NAME_stream`", neutral=(False,)),
    "max_tokens": _integer(
        "of the output; prompt and output must fit the context. 0 with `prompt_logprobs`: none",
        by_default="128 or what the context leaves",
    ),
    "min_tokens": _integer("the output has at least so many tokens", by_default="0", to_vllm=True),
    "top_k": _integer(
        "draw from so many of the likeliest tokens",
        default=0,
        bounds=(-1, math.inf),
        ranges="0 or -1 (off), or 1 and more",
        neutral=(-1, 1, 0),
        filters=True,
    ),
    "n": _integer("number of texts for one prompt", 1, bounds=(1, 128), neutral=(1,)),
    "temperature": _number(
        "flattens (above 1) or sharpens the distribution that tokens are drawn from",
        by_default="0; 1 where another field asks for sampling",
        bounds=(0, _MOST),
        ranges="0 (greedy) or any finite number above it",
        neutral=(None, 0),
    ),
    "top_p": _number(
        "draw from the likeliest tokens that sum up to it",
        default=0.0,
        bounds=(0, 1),
        ranges="0 (off) to 1",
        neutral=(0, 1.0),
        filters=True,
    ),
    "min_p": Option(
        "number",
        "least probability, as a share of the likeliest token's",
        default=0.0,
        bounds=(0, 1),
        ranges="0 (off) to 1",
        neutral=(0.0,),
        filters=True,
    ),
    "repetition_penalty": _number(
        "makes tokens of prompt and output less likely",
        by_default="the model's own, else 1",
        bounds=(math.ulp(0.0), _MOST),
        ranges="a finite number above 0 (1 is off)",
    ),
    "frequency_penalty": _penalty(),
    "presence_penalty": _penalty(),
    "seed": _seed(
        "the same seed gives the same text, with any other requests beside it",
        bounds=(0, 2**64 - 1),
        neutral=(None,),
        to_vllm=True,
    ),
    "random_seed": _seed("another name of `seed`", in_json=False, in_openai=False),
    "stop_words": _texts(
        "the output ends before the first of them, which may be a special token",
        called="stop",
        most=128,
        neutral=((),),
    ),
    "bad_words": _texts("the output contains none of them", most=1000),
    "json_schema": _text(_FORCED),
    "regex": _text(_FORCED),
    "choice": _texts(_FORCED, in_openai=False),
    "sampling_parameters": _text(
        "options in one JSON object, under vLLM's names; overrides the others", in_json=False
    ),
    "length_penalty": _number("accepted only as 1", in_openai=False),
    "beam_width": _integer("accepted only as 1", in_openai=False),
    "timeout_ms": _integer(
        "the request ends that long after its arrival, on HTTP too", in_json=False, in_openai=False
    ),
    "on_timeout": _text(
        "`partial`: the text so far, with `finish_reason` `timeout`; `error`: a 503",
        "partial",
        in_json=False,
    ),
    "exclude_input_in_output": _flag("false: the answer begins with the prompt", default=True),
    "return_finish_reason": _output(),
    "return_cumulative_logprob": _output(neutral=(False,)),
    "return_logprobs": _output(neutral=(False,)),
    "return_num_input_tokens": _output(),
    "return_num_output_tokens": _output(),
    "return_prompt_logprobs": _output(),
    "return_prompt_token_ids": _output(),
    "return_token_ids": _output(),
    "return_num_cached_tokens": _output(),
    "return_chat_format": _output(),
    "ignore_eos": _boolean(
        "true: the output goes on after the model's end-of-text token", False, neutral=(False,)
    ),
    "include_stop_str_in_output": _boolean(
        "true: the output has the stop word that ends it", False, param="include_stop_word"
    ),
    "logprobs": _logprobs(
        "alternatives to each token, in the output `logprobs`",
        param="num_logprobs",
        neutral=(None,),
    ),
    "prompt_logprobs": _logprobs(
        "alternatives to each token of the prompt, in the output `prompt_logprobs`",
        param="num_prompt_logprobs",
    ),
    "skip_special_tokens": _boolean(
        "false: the text shows special tokens, but for the one that ends it", True
    ),
    "add_special_tokens": _boolean(
        "whether the tokenizer adds the model's special tokens to the prompt",
        by_default="true for a text, false for a chat",
    ),
    "truncate_prompt_tokens": Option(
        "integer", "reads so many last tokens of the prompt; -1: as many as fit beside `max_tokens`"
    ),
    "best_of": _listed("integer", "accepted only as 1 or `n`", in_openai=False),
    "stop_token_ids": _ids("the output ends at the first of them", most=1000),
    "logit_bias": _listed(
        "biases",
        "an object of token ids and what is added to their logits",
        default=(),
        bounds=(-100, 100),
        most=10_000,
        neutral=((),),
        to_vllm=True,
    ),
    "allowed_token_ids": _ids("only these tokens are generated", most=10_000, to_vllm=True),
    "clamp_max_tokens": _listed(
        "boolean", "true: `max_tokens` is at most what fits", False, in_openai=False
    ),
    "grammar": _listed("text", _FORCED, in_openai=False),
    # A parameter of that name is Triton's own.
    "priority": _listed(
        "integer",
        "the lowest number begins first; on CPUs, 2147483647 pauses while others run",
        0,
        bounds=_ANY,
    ),
}
FILTERS = [name for name, option in OPTIONS.items() if option.filters]
# vLLM's fields without support here, each with its only value, which has no effect.
FIXED = {
    "detokenize": True,
    "spaces_between_special_tokens": True,
    "use_beam_search": False,
    "early_stopping": False,
    "flat_logprobs": False,
}
