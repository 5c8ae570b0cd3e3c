"""Which models can be told that a caller has left: ours. Others, such as those of NVIDIA's vLLM
backend, take each parameter for one of their own.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

_GOOD_FOR_S = 5.0  # a folder may be another model's after `hf-triton apply`
_MOST, _LONGEST_NAME = 4096, 255  # a name is that of a folder


class OurModels:
    """``ask`` asks Triton about a model, in the background: before it has answered, none is ours.

    ``run`` runs it beside the others, ``now`` is the time in seconds.
    """

    def __init__(
        self,
        ask: Callable[[str], Awaitable[bool]],
        run: Callable[[Coroutine[Any, Any, None]], object],
        now: Callable[[], float],
    ) -> None:
        self._ask, self._run, self._now = ask, run, now
        self._known: dict[str, tuple[float, bool]] = {}

    def have(self, model: str) -> bool:
        """Whether the model of this name is one of them."""
        if len(model) > _LONGEST_NAME:
            return False
        asked_at_s, is_ours = self._known.get(model, (-math.inf, False))
        if self._now() - asked_at_s > _GOOD_FOR_S:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[model] = self._now(), is_ours
            self._run(self._learn(model))
        return is_ours

    async def _learn(self, model: str) -> None:
        self._known[model] = self._now(), await self._ask(model)
