"""Compares a model's tensors with those that its files had, as transformers reports it.

Transformers fills what is missing with random numbers and only warns: such a model would answer
otherwise at each start. What transformers ties or computes itself is not in its report, and
buffers come out of their code alike each time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import LoadError
from ..log import info, warn
from .served_model import ServedModel

# Read in training alone, or by a head that would be missing, too.
_UNREAD = re.compile(r"(^|\.)(pooler\.|masked_spec_embed$|mask_token$)")
_NUM_NAMED = 3


def check_report(served: ServedModel, model: Any, report: Mapping[str, Any]) -> None:
    """Refuses random weights, unless ``allow_missing_weights``; logs what the files have beside.

    Raises:
        LoadError: names the first tensors that the files lack, or have in another shape.
    """
    missing, mismatched = _missing(model, report["missing_keys"]), _mismatched(report)
    problems = [f"has no weights for {_listed(missing)}"] if missing else []
    problems += [f"has weights of another shape: {_listed(mismatched)}"] if mismatched else []
    if problems and not served.allow_missing_weights:
        raise LoadError(
            f"{served.source} {' and '.join(problems)}: it is no model for {served.task}, or its "
            "files are incomplete; allow_missing_weights: true takes random numbers instead"
        )
    for problem in problems:
        warn(f"{served.name}: {served.source} {problem}: they are random numbers")
    if any(name.startswith("pooler.") for name in report["missing_keys"]):
        _leave_out_pooler(served, model)
    if report["unexpected_keys"]:
        info(f"{served.name}: not used of the files: {_listed(sorted(report['unexpected_keys']))}")


def _missing(model: Any, names: Collection[str]) -> list[str]:
    """The missing parameters that answers depend on, in the model's order."""
    every = (name for name, _ in model.named_parameters(remove_duplicate=False))
    return [name for name in every if name in names and not _UNREAD.search(name)]


def _leave_out_pooler(served: ServedModel, model: Any) -> None:
    """A pipeline of a model without a head answers what the pooler makes, where a request asks."""
    if served.task == "pipeline" and not served.allow_missing_weights:
        model.pooler = None


def _mismatched(report: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} {list(found)} for {list(wanted)}"
        for name, found, wanted in sorted(report["mismatched_keys"])
    ]


def _listed(names: list[str]) -> str:
    more = len(names) - _NUM_NAMED
    return ", ".join(names[:_NUM_NAMED]) + (f" and {more} more" if more > 0 else "")
