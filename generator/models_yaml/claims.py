"""The rules on what all models name together: no two may want the same folder, nor two metrics
under one name.

Of folders letters' case does not count: on some file systems ``Demo`` and ``demo`` are one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from generator.spec.model_spec import MAX_NAME, Metric
from generator.spec.triton_models import ENGINE_SUFFIX
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Report, show


@dataclass(frozen=True)
class NameClaim:
    """A model's name, its place in the file, and the suffixes of its other folders' names."""

    node: Node
    name: str
    suffixes: tuple[str, ...] = ()

    @property
    def streams(self) -> bool:
        """Whether its other folder holds its engine; else they are an ensemble's steps."""
        return self.suffixes == (ENGINE_SUFFIX,)

    @property
    def folders(self) -> list[str]:
        return [self.name + suffix for suffix in self.suffixes]


def refuse_clashes(claims: Iterable[NameClaim], report: Report) -> None:
    """Reports each name that another model has taken, and each too long for its other folders."""
    claims = list(claims)
    others = {folder.lower(): (folder, claim) for claim in claims for folder in claim.folders}
    first: dict[str, NameClaim] = {}
    for claim in claims:
        folder = claim.name.lower()
        other = first.setdefault(folder, claim)
        if other is not claim:
            report.add(claim.node, f"got {show(claim.node)}, {_same_name(claim, other)}")
        elif folder in others:
            report.add(claim.node, f"got {show(claim.node)}, {_taken(*others[folder])}")
        _refuse_long(claim, report)


def _same_name(claim: NameClaim, other: NameClaim) -> str:
    if claim.name == other.name:
        return f"already the name of the model in line {other.node.line}"
    return f"which differs only in case from the name in line {other.node.line}"


def _taken(folder: str, owner: NameClaim) -> str:
    line = owner.node.line
    if owner.streams:
        holds = f"'{folder}' holds the engine of the model in line {line}, which streams"
        return f"but {holds}; rename one of them, or set 'streaming: false' there"
    return f"but '{folder}' is a step of the ensemble in line {line}; rename one of them"


def _refuse_long(claim: NameClaim, report: Report) -> None:
    if not claim.suffixes:
        return
    suffix = max(claim.suffixes, key=len)
    longest = MAX_NAME - len(suffix)
    if longest < len(claim.name) <= MAX_NAME:
        what = "a model that streams" if claim.streams else "an ensemble"
        why = f"{what} needs {len(suffix)} more for '<name>{suffix}'"
        message = f"got {len(claim.name)} characters, expected at most {longest}: {why}"
        report.add(claim.node, message)


@dataclass(frozen=True)
class MetricClaim:
    """A metric of one model, and where it stands."""

    node: Node
    name: str
    metric: Metric


def refuse_differences(claimed: Iterable[MetricClaim], report: Report) -> None:
    """Reports a metric that another model declares otherwise: on /metrics they are one."""
    first: dict[str, MetricClaim] = {}
    for claim in claimed:
        other = first.setdefault(claim.name, claim)
        if other.metric != claim.metric:
            line = f"the metric of this name in line {other.node.line}"
            report.add(claim.node, f"differs from {line}; expected the same, or another name")
