"""What a request may say of its answer, a row for each option: every door reads it here.

Needs nothing but the standard library: the generator reads it too.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

MAX_SEED = 2**64 - 1
MAX_LOGPROBS = 20
_MOST = sys.float_info.max


@dataclass(frozen=True)
class Option:
    """What a request may say, at each door: as a tensor of the type ``tensor``; as a parameter of
    Triton's; ``in_json``, which is ``sampling_parameters`` in vLLM's names; and ``in_openai``, a
    field of OpenAI's API. The last two have it as ``called``, SamplingParams as ``param``, where
    it has another name there. A ``default`` of None is the model's own, or none.

    ``kind`` is the check of that name in OpenAI's API. Numbers lie within ``bounds``, which errors
    call ``allowed``. ``neutral`` values change nothing, the last of them in vLLM too; a search by
    beams takes them alone. An option that ``filters`` cuts the distribution that tokens are drawn
    from. ``to_vllm`` is passed on as it is.
    """

    kind: str
    default: Any = None
    tensor: str = ""
    is_parameter: bool = True
    in_json: bool = True
    in_openai: bool = True
    called: str = ""
    param: str = ""
    bounds: tuple[float, float] | None = None
    allowed: str = ""
    neutral: tuple[Any, ...] = ()
    filters: bool = False
    to_vllm: bool = False

    @property
    def dims(self) -> list[int]:
        """Of its tensor, for each prompt."""
        return [-1 if self.kind == "texts" else 1]


_integer = partial(Option, "integer", tensor="INT32")
_number = partial(Option, "number", tensor="FP32")
_flag = partial(Option, "boolean", default=False, tensor="BOOL", in_json=False, in_openai=False)
_text = partial(Option, "text", tensor="STRING", in_openai=False)
# What there is no tensor or parameter for, by which it could come for a row.
_listed = partial(Option, is_parameter=False)
_penalty = partial(
    _number, default=0.0, bounds=(-2, 2), allowed="-2 to 2", neutral=(0,), to_vllm=True
)
_token_ids = partial(
    _listed, "integers", (), bounds=(0, math.inf), allowed="0 and more", neutral=((),)
)
_logprobs = partial(
    Option, "integer", in_openai=False, bounds=(0, MAX_LOGPROBS), allowed=f"0 to {MAX_LOGPROBS}"
)
# docs/requests.md says what each of them is for.
OPTIONS: dict[str, Option] = {
    "stream": _flag(neutral=(False,)),
    "max_tokens": _integer(),
    "min_tokens": _integer(to_vllm=True),
    "top_k": _integer(
        default=0,
        bounds=(-1, math.inf),
        allowed="0 or -1 (off), or 1 and more",
        neutral=(-1, 1, 0),
        filters=True,
    ),
    "n": _integer(default=1, bounds=(1, 128), allowed="1 to 128", neutral=(1,)),
    "temperature": _number(
        bounds=(0, _MOST), allowed="0 (greedy) or any finite number above it", neutral=(None, 0)
    ),
    "top_p": _number(
        default=0.0, bounds=(0, 1), allowed="0 (off) to 1", neutral=(0, 1.0), filters=True
    ),
    "min_p": Option(
        "number", 0.0, bounds=(0, 1), allowed="0 (off) to 1", neutral=(0.0,), filters=True
    ),
    "repetition_penalty": _number(
        bounds=(math.ulp(0.0), _MOST), allowed="a finite number above 0 (1 is off)"
    ),
    "frequency_penalty": _penalty(),
    "presence_penalty": _penalty(),
    "seed": _integer(
        tensor="UINT64",
        bounds=(0, MAX_SEED),
        allowed=f"0 to {MAX_SEED}",
        neutral=(None,),
        to_vllm=True,
    ),
    "random_seed": _integer(tensor="UINT64", in_json=False, in_openai=False),
    "stop_words": Option("texts", (), "STRING", called="stop", neutral=((),)),
    "bad_words": Option("texts", (), "STRING"),
    "json_schema": _text(),
    "regex": _text(),
    "choice": Option("texts", (), "STRING", in_openai=False),
    "sampling_parameters": _text(in_json=False),
    "length_penalty": _number(in_openai=False),
    "beam_width": _integer(in_openai=False),
    "timeout_ms": _integer(in_json=False, in_openai=False),
    "on_timeout": _text(default="partial", in_json=False),
    "exclude_input_in_output": _flag(default=True),
    "return_finish_reason": _flag(),
    "return_cumulative_logprob": _flag(neutral=(False,)),
    "return_logprobs": _flag(neutral=(False,)),
    "return_num_input_tokens": _flag(),
    "return_num_output_tokens": _flag(),
    "return_prompt_logprobs": _flag(),
    "return_prompt_token_ids": _flag(),
    "return_token_ids": _flag(),
    "return_num_cached_tokens": _flag(),
    "return_chat_format": _flag(),
    "ignore_eos": Option("boolean", False, neutral=(False,)),
    "include_stop_str_in_output": Option("boolean", False, param="include_stop_word"),
    "logprobs": _logprobs(param="num_logprobs", neutral=(None,)),
    "prompt_logprobs": _logprobs(param="num_prompt_logprobs"),
    "skip_special_tokens": Option("boolean", True),
    "add_special_tokens": Option("boolean"),
    "truncate_prompt_tokens": Option("integer"),
    "best_of": _listed("integer", in_openai=False),
    "stop_token_ids": _token_ids(),
    "logit_bias": _listed("biases", (), neutral=((),)),
    "allowed_token_ids": _token_ids(),
    "clamp_max_tokens": _listed("boolean", False, in_openai=False),
    "grammar": _listed("text", in_openai=False),
    # A parameter of that name is Triton's own.
    "priority": _listed("integer", 0, bounds=(0, math.inf), allowed="0 and more"),
}
FILTERS = [name for name, option in OPTIONS.items() if option.filters]
