"""The rules between models, checked when all entries are read: no two may want the same folder, nor
two metrics under one name, and a canary's arms must be able to answer for their model.

Of folders letters' case does not count: on some file systems ``Demo`` and ``demo`` are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from generator.spec.model_spec import MAX_NAME, OVERRIDES, Arm, Metric, ModelSpec
from generator.spec.triton_models import ENGINE_SUFFIX
from generator.yaml_file import keys
from generator.yaml_file.nodes import Key, Node
from generator.yaml_file.schema import Report, did_you_mean, show


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


def refuse_clashes(claims: Sequence[NameClaim], report: Report) -> None:
    """Reports each name that another model has taken, and each too long for its other folders."""
    others = {folder.lower(): (folder, claim) for claim in claims for folder in claim.folders}
    first: dict[str, NameClaim] = {}
    for claim in claims:
        got, folder = f"got {show(claim.node)}", claim.name.lower()
        other = first.setdefault(folder, claim)
        if claim.name == other.name and other is not claim:
            line = other.node.line
            report.add(claim.node, f"{got}, already the name of the model in line {line}")
        elif other is not claim:
            line = other.node.line
            report.add(
                claim.node, f"{got}, which differs only in case from the name in line {line}"
            )
        elif folder in others:
            report.add(claim.node, f"{got}, but {_taken(*others[folder])}")
        suffix = max(claim.suffixes, key=len, default="")
        longest = MAX_NAME - len(suffix)
        if longest < len(claim.name) <= MAX_NAME:
            what = "a model that streams" if claim.streams else "an ensemble"
            why = f"{what} needs {len(suffix)} more for '<name>{suffix}'"
            message = f"got {len(claim.name)} characters, expected at most {longest}: {why}"
            report.add(claim.node, message)


def _taken(folder: str, owner: NameClaim) -> str:
    line = owner.node.line
    if owner.streams:
        holds = f"'{folder}' holds the engine of the model in line {line}, which streams"
        return f"{holds}; rename one of them, or set 'streaming: false' there"
    return f"'{folder}' is a step of the ensemble in line {line}; rename one of them"


@dataclass(frozen=True)
class MetricClaim:
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


@dataclass(frozen=True)
class Branch:
    node: Node
    arm: Arm

    def entry(self, owner: str) -> Node:
        place = self.node.get("name") or self.node
        key = Key("name", place.line, place.column, place.where)
        name = place._replace(value=self.arm.model_of(owner), written="")
        given = self.node.value.items() if isinstance(self.node.value, dict) else ()
        overrides = {key: node for key, node in given if key.name in OVERRIDES}
        return self.node._replace(value={key: name, **overrides})

    def inherited(self, whole: Node) -> Node:
        left_out = {"name", "served_names", "canary"}
        if "model" in self.arm.overrides:
            left_out.add("revision")  # of another repository
        given = whole.value.items() if isinstance(whole.value, dict) else ()
        kept = {key: node for key, node in given if key.name not in left_out}
        return whole._replace(value=kept)


def branches(whole: Node) -> list[Branch]:
    """The arms that are right by themselves; mistakes are reported with the model's own."""
    canary = whole.get("canary")
    arms = None if canary is None else canary.get("arms")
    nodes = [] if arms is None else arms.items
    found = ((node, keys.read(Arm, node, Report())) for node in nodes)
    return [Branch(node, arm) for node, arm in found if arm is not None]


@dataclass(frozen=True)
class Target:
    """Another entry that a model named ``owner`` shares its requests with, and where it says so."""

    node: Node
    owner: str


def refuse_targets(
    targets: Iterable[Target],
    names: Iterable[str],
    specs: Iterable[ModelSpec],
    report: Report,
) -> None:
    """Reports each target that can't answer for its owner; ``specs`` are the correct entries."""
    known = dict.fromkeys(names)
    by_name = {spec.name: spec for spec in specs}
    for target in targets:
        name, got = str(target.node.value), f"got {show(target.node)}, which is"
        owner, other = by_name.get(target.owner), by_name.get(name)
        if name == target.owner:
            report.add(target.node, f"{got} this model itself; expected another one")
        elif name not in known:
            hint = did_you_mean(name, [one for one in known if one != target.owner], "models")
            report.add(target.node, f"{got} no model of this file{hint}")
        elif owner is not None and other is not None:
            for message in _differences(owner, other):
                report.add(target.node, message)


def _differences(owner: ModelSpec, other: ModelSpec) -> Iterator[str]:
    """Why one model can't take the other one's requests."""
    if other.load != "always":
        waits = "requests that are routed do not wait for it; expected load: always"
        yield f"'{other.name}' has load: {other.load}, and {waits}"
    if other.canary is not None:
        yield (
            f"'{other.name}' has a canary of its own, and a routed request is not routed again; "
            "name the model that is meant, or take it away there"
        )
    if other.ensemble is not None:
        yield f"'{other.name}' is an ensemble, which only Triton itself can ask; set layout: single"
        return
    if other.task != owner.task:
        yield f"'{other.name}' is for {other.task}, expected a model for {owner.task}"
        return
    for key, mine, theirs in (
        ("streaming", str(owner.streaming).lower(), str(other.streaming).lower()),
        ("max_batch_size", str(owner.max_batch_size), str(other.max_batch_size)),
    ):
        if mine != theirs:
            same = "it gets the same requests"
            yield f"'{other.name}' has {key} {theirs}, expected {mine} as here: {same}"
    known = {adapter.name for adapter in other.adapters or ()}
    if missing := [one.name for one in owner.adapters or () if one.name not in known]:
        lacks = f"lacks the adapters {', '.join(missing)}"
        yield f"'{other.name}' {lacks}, which requests may name"
