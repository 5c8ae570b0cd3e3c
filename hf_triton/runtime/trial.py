"""Selects how to compute a model by trying candidates. Knows neither models nor what is
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from hf_triton.runtime import log
from hf_triton.runtime.errors import LoadError, reason

C = TypeVar("C", bound=Any)  # has a name, for the log


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

    def __call__(self, *given: Any) -> Any:
        runner = self.make(*given)
        runner.name = self.name
        return runner


class Refusals:
    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = {}

    def add(self, name: str, why: str) -> None:
        self._names.setdefault(why, {})[name] = None

    def __iter__(self) -> Any:
        return (f"{' and '.join(names)}: {why}" for why, names in self._names.items())

    def __str__(self) -> str:
        return "; ".join(self)


def first_agreeing(
    candidates: Iterable[C],
    difference: Callable[[C], float],
    tolerance: float,
    refusals: Refusals,
    *,
    told: str = "logits differ by {:.2g} of their range",
    unfit: type[Exception] | tuple[type[Exception], ...] = (),
    give_back: Callable[[], object] = lambda: None,
) -> C | None:
    """The first candidate whose numbers differ from the model's own by at most ``tolerance``; logs
    why earlier ones were rejected. None where none agrees. A candidate that raises ``unfit`` (the
    model is not of its kind) is not logged. ``give_back`` is called for each rejected one. Raises
    LoadErrors of candidates.
    """
    for candidate in candidates:
        try:
            found = difference(candidate)
        except LoadError:
            raise
        except unfit:
            pass
        except Exception as failure:
            # Any exception rejects the candidate: it does not support this architecture.
            refusals.add(candidate.name, f"{type(failure).__name__}: {reason(failure, 120)}")
        else:
            if found <= tolerance:
                for refusal in refusals:
                    log.info(f"not run by {refusal}")
                return candidate
            refusals.add(candidate.name, f"{told.format(found)}, allowed is {tolerance:.2g}")
        give_back()
    return None
