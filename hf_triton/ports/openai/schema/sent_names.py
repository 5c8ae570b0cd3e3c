"""Which of a caller's fields an option of the model was made of: several fields stand for one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_triton.ports.openai.schema.names import Names, by_field, top
from hf_triton.ports.openai.schema.response_format import place_of_schema

# What holds an answer: the model's name of it and vLLM's.
_HELD = {"json_schema": "json", "regex": "regex", "choice": "choice", "grammar": "grammar"}
_SAMPLING = "sampling_parameters"
_KWARGS = "chat_template_kwargs"


@dataclass(frozen=True)
class SentNames:
    """``sent`` are the names of the fields that a request has, ``structured`` those within vLLM's
    ``structured_outputs``; ``parameters`` are what became of them. ``calls`` where a schema is that
    of tools.
    """

    sent: frozenset[str]
    structured: frozenset[str]
    parameters: Mapping[str, Any]
    calls: bool
    response_format: Any = None

    @classmethod
    def of(
        cls, body: Mapping[str, Any], parameters: Mapping[str, Any], sampling: Mapping[str, Any]
    ) -> SentNames:
        """Those of a body; ``sampling`` is what an API made of its own fields."""
        sent = frozenset(name for name, value in body.items() if value is not None)
        structured = body.get("structured_outputs")
        inner = frozenset(structured if isinstance(structured, dict) else ())
        calls = "json_schema" in sampling
        return cls(sent, inner, parameters, calls, body.get("response_format"))

    @property
    def names(self) -> Names:
        """Of errors; what they are is found only at one."""
        return Names(self._own, {"send text_input": "send it as prompt to /v1/completions"})

    def _own(self, place: str) -> str:
        for outer in (_SAMPLING, _KWARGS):
            inner = place.removeprefix(f"{outer}.")
            if inner != place and (outer == _SAMPLING or top(inner) in self.sent):
                place = inner
        if place == _SAMPLING:  # all of them are too long
            place = max(self.parameters, key=lambda name: len(json.dumps(self.parameters[name])))
        prompt = self._first("prompt", "messages")
        held = {option: self._holding(option) for option in _HELD}
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
        }
        return by_field({**held, **known})(place)

    def _holding(self, option: str) -> str:
        """What a schema, an expression or a list of choices was sent as."""
        name = _HELD[option]
        if option == "json_schema" and self.calls:
            return "tools"
        if option in ("json_schema", "regex") and "response_format" in self.sent:
            return place_of_schema(self.response_format)
        if option == "grammar" and "grammar" in self.sent:
            return "grammar"
        if f"guided_{name}" in self.sent:
            return f"guided_{name}"
        is_object = option == "json_schema" and "json_object" in self.structured
        return f"structured_outputs.{'json_object' if is_object else name}"

    def _first(self, *names: str) -> str:
        """The first of these fields that the request has, else the last."""
        return next((name for name in names if name in self.sent), names[-1])
