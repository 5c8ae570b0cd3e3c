"""Options of a sequence in the names of vLLM's SamplingParams. Imports no vLLM. Where a text
ends, at stop words for one, the sequence decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.text_generation.sampling.token_logprobs import alternatives
from hf_triton.text_generation.sequence.request_options import FILTERS, OPTIONS
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import LEAST_LOGPROB, TokenLogprobs
from hf_triton.text_generation.structured.constraint import Constraint
from hf_triton.text_generation.structured.llguidance_grammars import (
    grammar_after_reasoning,
    lark_text,
    regex_of,
    with_json_defaults,
)

MAX_TEMPERATURE = 2.0  # vLLM refuses more
MIN_TEMPERATURE = 0.01  # and takes what is less for this
_LARGEST_PENALTY = 1e30
# Conversions of options of these kinds to vLLM's types.
_LISTS: dict[str, Callable[[Any], Any]] = {"integers": list, "biases": dict}


def require_known(params: SamplingParams) -> None:
    """Raises RequestError for a temperature that vLLM does not take."""
    if not params.is_greedy and params.temperature > MAX_TEMPERATURE:
        raise RequestError(
            f"temperature: got {params.temperature:g}, allowed: 0 to {MAX_TEMPERATURE:g} "
            "(engine vllm)"
        )


def sampling_arguments(params: SamplingParams, eos_token_ids: Iterable[int]) -> dict[str, Any]:
    ends = (*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids))
    return {
        **{
            option.called or name: _asked(params, option.param or name, option.kind)
            for name, option in OPTIONS.items()
            if option.to_vllm
        },
        **{name: _filter(params, name) for name in FILTERS},
        "max_tokens": max(1, params.max_tokens),
        "temperature": 0.0 if params.is_greedy else max(params.temperature, MIN_TEMPERATURE),
        "repetition_penalty": min(
            max(params.repetition_penalty, 1 / _LARGEST_PENALTY), _LARGEST_PENALTY
        ),
        "stop_token_ids": sorted(set(ends)),
        "ignore_eos": True,  # the model's ends are among stop_token_ids
        "detokenize": False,
    }


def structured_outputs(constraint: Constraint) -> dict[str, Any]:
    """Arguments of vLLM's StructuredOutputsParams that give the grammar that is followed here."""
    if constraint.reasoning is not None:
        return {"grammar": grammar_after_reasoning(constraint)}
    if constraint.kind in ("regex", "choice"):
        return {"regex": regex_of(constraint)}
    if constraint.kind == "grammar":
        return {"grammar": lark_text(constraint)}
    return {"json": json.dumps(with_json_defaults(constraint.text))}


def bad_words(params: SamplingParams, eos_token_ids: frozenset[int]) -> list[list[int]]:
    """Token sequences that are never completed, without single end tokens."""
    return [
        list(word)
        for word in params.bad_token_ids
        if word and not (len(word) == 1 and word[0] in eos_token_ids)
    ]


def token_logprobs(token_id: int, found: Any, num: int) -> TokenLogprobs:
    """Reads vLLM's ``{token_id: Logprob}``: the sampled token's, and those of the ``num`` likeliest
    others.
    """
    sampled = found[token_id]
    ranked = sorted(found.items(), key=lambda item: int(item[1].rank))
    likeliest = [(id_, float(one.logprob)) for id_, one in ranked if one.rank <= num]
    ids, values = [id_ for id_, _ in likeliest], [value for _, value in likeliest]
    others = alternatives(ids, values, token_id)
    logprob = max(LEAST_LOGPROB, float(sampled.logprob))  # of NaN too
    return TokenLogprobs(logprob, int(sampled.rank), others)


def _asked(params: SamplingParams, name: str, kind: str) -> Any:
    value = getattr(params, name)
    return _LISTS[kind](value) or None if kind in _LISTS else value


def _filter(params: SamplingParams, name: str) -> Any:
    """An option such as top_k; for greedy sampling, the value by which vLLM ignores it."""
    neutral, value = OPTIONS[name].neutral, getattr(params, name)
    return neutral[-1] if params.is_greedy or value in neutral else value
