"""Selects one of several ways to compute, by trying each. Knows neither models nor what they
compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from hf_triton.runtime import log
from hf_triton.runtime.errors import LoadError, reason

C = TypeVar("C")


@dataclass(frozen=True)
class RunnerSpec:
    """Makes a runner, and names it. A runner of text is made of a model, a cache and a device;
    without ``chunked_prefill`` no prompt may be cut. ``of_model`` runs the model itself over the
    same cache, where this one does not.
    """

    name: str
    make: Callable[..., Any]
    chunked_prefill: bool = True
    of_model: RunnerSpec | None = None

    def __call__(self, *given: Any, **more: Any) -> Any:
        runner = self.make(*given, **more)
        runner.name = self.name
        return runner


def first_agreeing(
    candidates: Iterable[tuple[str, C]],
    difference: Callable[[Any], float],
    tolerance: float,
    *,
    taken: str = "run by",
    told: str = "logits differ by {:.2g} of their range",
    names_first: bool = False,
    give_back: Callable[[], object] = lambda: None,
) -> tuple[C | None, str]:
    """The first candidate, of pairs with a name, whose numbers differ from the reference by at most
    ``tolerance``. One log line says which is ``taken`` and why none before it; where it is the
    first of all, only with ``names_first``. Where none agrees: None, and why, candidate by
    candidate. ``give_back`` is called for each rejected one. Raises LoadErrors of candidates.
    """
    names: dict[str, dict[str, None]] = {}  # by the reason
    for name, candidate in candidates:
        try:
            found = difference(candidate)
        except LoadError:
            raise
        except Exception as failure:
            # Any exception rejects the candidate: it does not support this architecture.
            why = f"{type(failure).__name__}: {reason(failure, 120)}"
        else:
            if found <= tolerance:
                if names or names_first:
                    log.info("; not ".join([f"{taken} {name}", *_refusals(names)]))
                return candidate, ""
            why = f"{told.format(found)}, allowed is {tolerance:.2g}"
        names.setdefault(why, {})[name] = None
        give_back()
    return None, "; ".join(_refusals(names))


def _refusals(names: dict[str, dict[str, None]]) -> list[str]:
    return [f"{' and '.join(those)}: {why}" for why, those in names.items()]
