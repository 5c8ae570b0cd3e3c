"""The rules on the names of all models together: no two may want the same folder.

Letters' case does not count: on some file systems ``Demo`` and ``demo`` are one folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from generator.model_keys import MAX_NAME
from generator.schema import Report, show
from generator.triton_models import ENGINE_SUFFIX, engine_name
from generator.yaml_nodes import Node


@dataclass(frozen=True)
class NameClaim:
    """A model's name, where it stands, and whether its engine needs a second folder."""

    node: Node
    name: str
    streaming: bool


def refuse_clashes(claims: Iterable[NameClaim], report: Report) -> None:
    """Reports each name that another model has taken, and each too long for its second folder."""
    claims = list(claims)
    engines = {engine_name(claim.name).lower(): claim for claim in claims if claim.streaming}
    first: dict[str, NameClaim] = {}
    for claim in claims:
        folder = claim.name.lower()
        other = first.setdefault(folder, claim)
        if other is not claim:
            report.add(claim.node, f"got {show(claim.node)}, {_same_name(claim, other)}")
        elif folder in engines:
            report.add(claim.node, f"got {show(claim.node)}, {_taken(engines[folder])}")
        if claim.streaming:
            _refuse_long(claim, report)


def _same_name(claim: NameClaim, other: NameClaim) -> str:
    if claim.name == other.name:
        return f"already the name of the model in line {other.node.line}"
    return f"which differs only in case from the name in line {other.node.line}"


def _taken(owner: NameClaim) -> str:
    holds = f"'{engine_name(owner.name)}' holds the engine of the model in line {owner.node.line}"
    return f"but {holds}, which streams; rename one of them, or set 'streaming: false' there"


def _refuse_long(claim: NameClaim, report: Report) -> None:
    longest = MAX_NAME - len(ENGINE_SUFFIX)
    if longest < len(claim.name) <= MAX_NAME:
        why = f"a model that streams needs {len(ENGINE_SUFFIX)} more for '<name>{ENGINE_SUFFIX}'"
        message = f"got {len(claim.name)} characters, expected at most {longest}: {why}"
        report.add(claim.node, message)
