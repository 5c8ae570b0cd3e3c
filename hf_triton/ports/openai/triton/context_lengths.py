"""How long the contexts of models are: each says it of itself, beside its engine, as it decides it
when it is loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Collection, Mapping
from contextlib import aclosing

from generator.spec.runtime_rules import TOKENIZER_QUESTION
from generator.spec.task_sets import COMPLETION_TASKS
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.openai.triton.catalog import ServedModel
from hf_triton.ports.openai.triton.client import Triton
from hf_triton.ports.repeats import Repeats
from hf_triton.ports.time_limit import timeout

_GOOD_FOR_S = 10.0
_TIMEOUT_S = 1.0  # of a model that is busy, or hangs: the list of models does without
_QUESTION = {"text_input": "-", TOKENIZER_QUESTION: json.dumps({"ask": "tokenize"})}


class ContextLengths:
    """Those of one Triton's models."""

    def __init__(self, triton: Triton, repeats: Repeats) -> None:
        """Nobody waits for a model that ``repeats`` says is away, nor has it loaded."""
        self._triton, self._repeats = triton, repeats
        self._known: dict[str, tuple[float, int | None]] = {}  # with when they were asked

    async def of(self, models: Collection[ServedModel]) -> Mapping[str, int]:
        """The tokens by the models' names in Triton; of those that say nothing, none."""
        asked = {one.triton_name: one for one in models if one.task in COMPLETION_TASKS}
        self._known = {name: one for name, one in self._known.items() if self._is_good(name, *one)}
        unknown = asked.keys() - self._known
        away = set(filter(self._repeats.is_coming, unknown))
        await asyncio.gather(*(self._ask(asked[name]) for name in unknown - away))
        known = ((name, self._known[name][1]) for name in asked if name in self._known)
        return {name: length for name, length in known if length is not None}

    def _is_good(self, name: str, asked_at_s: float, length: int | None) -> bool:
        """A model that is loaded on demand is asked once after each load: a question counts as a
        request, and would keep it in memory.
        """
        if self._repeats.state(name) and length is not None:
            return not self._repeats.is_coming(name)
        return asked_at_s > time.monotonic() - _GOOD_FOR_S

    async def _ask(self, model: ServedModel) -> None:
        self._known[model.triton_name] = (
            time.monotonic(),
            None,
        )  # whoever comes next waits for none
        with contextlib.suppress(ApiError, TimeoutError, asyncio.TimeoutError):
            async with timeout(_TIMEOUT_S):
                length = await self._length(model)
            self._known[model.triton_name] = (time.monotonic(), length)

    async def _length(self, model: ServedModel) -> int | None:
        async with aclosing(self._triton.generate(model, "", _QUESTION, outputs=())) as chunks:
            told = [json.loads(chunk.texts[0]) async for chunk in chunks]
        return int(told[0]["max_model_len"]) if told else None
