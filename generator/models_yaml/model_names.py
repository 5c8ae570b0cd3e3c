"""The rules on the names of all models together: no two may want the same folder.

Letters' case does not count: on some file systems ``Demo`` and ``demo`` are one folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from generator.models_yaml.model_keys import MAX_NAME
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
