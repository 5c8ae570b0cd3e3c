"""Which of a caller's fields an option of the model was made of: several fields stand for one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_triton.ports.openai.schema.names import Names, renamed, top
from hf_triton.ports.openai.schema.response_format import place_of_schema

# What holds an answer: the model's name of it and vLLM's.
_HELD = {"json_schema": "json", "regex": "regex", "choice": "choice", "grammar": "grammar"}
_SAMPLING = "sampling_parameters"
_KWARGS = "chat_template_kwargs"


@dataclass(frozen=True)
class SentNames:
    """``body`` is a request, ``parameters`` what became of it; ``calls`` where a schema is that of
    tools.
    """

    body: Any
    parameters: Mapping[str, Any]
    calls: bool

    @property
    def names(self) -> Names:
        """Of errors; what they are is found only at one."""
        return Names(self._own, {"send text_input": "send it as prompt to /v1/completions"})

    def _own(self, place: str) -> str:
        for outer in (_SAMPLING, _KWARGS):
            inner = place.removeprefix(f"{outer}.")
            if inner != place and (outer == _SAMPLING or self._has(top(inner))):
                place = inner
        if place == _SAMPLING:  # all of them are too long
            place = max(self.parameters, key=lambda name: len(json.dumps(self.parameters[name])))
        prompt = self._first("prompt", "messages")
        known = {
            "text_input": prompt,
            "input_ids": prompt,
            "stop_words": "stop",
            "max_tokens": self._first("max_completion_tokens", "max_tokens", "min_tokens", prompt),
            "logprobs": self._first("top_logprobs", "logprobs"),
            "prompt_logprobs": self._first("prompt_logprobs", "logprobs"),
            "repetition_penalty": self._first("repetition_penalty", "repeat_penalty"),
            "guided_grammar": self._first("guided_grammar", "grammar"),
            "lora_name": "model",
            _KWARGS: self._first(_KWARGS, "reasoning_effort"),
            **{option: self._holding(option) for option in _HELD},
        }
        return renamed(known)(place)

    def _holding(self, option: str) -> str:
        """What a schema, an expression or a list of choices was sent as."""
        name = _HELD[option]
        if option == "json_schema" and self.calls:
            return "tools"
        if option in ("json_schema", "regex") and self._has("response_format"):
            return place_of_schema(self.body.response_format)
        if option == "grammar" and self._has("grammar"):
            return "grammar"
        if self._has(f"guided_{name}"):
            return f"guided_{name}"
        given = getattr(self.body, "structured_outputs", None)
        is_object = option == "json_schema" and isinstance(given, dict) and "json_object" in given
        return f"structured_outputs.{'json_object' if is_object else name}"

    def _has(self, name: str) -> bool:
        return getattr(self.body, name, None) is not None

    def _first(self, *names: str) -> str:
        """The first of these fields that the request has, else the last."""
        return next(filter(self._has, names), names[-1])
