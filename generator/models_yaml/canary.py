"""The key ``canary`` of an entry: the arms that share its requests.

What it says about other entries is checked when all are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from generator.models_yaml.entry import Entry
from generator.spec.model_spec import OVERRIDES, Arm, ModelSpec
from generator.yaml_file import keys, schema
from generator.yaml_file.nodes import Key, Node
from generator.yaml_file.schema import Report


@dataclass(frozen=True)
class Branch:
    """An arm, and where it stands."""

    node: Node
    arm: Arm

    def entry(self, owner: str) -> Node:
        """The arm's keys, as if they were a model's entry."""
        place = self.node.get("name") or self.node
        key = Key("name", place.line, place.column, place.where)
        name = place._replace(value=self.arm.model_of(owner), written="")
        given = self.node.value.items() if isinstance(self.node.value, dict) else ()
        overrides = {key: node for key, node in given if key.name in OVERRIDES}
        return self.node._replace(value={key: name, **overrides})

    def inherited(self, whole: Node) -> Node:
        """The keys that the arm inherits from its model, whose entry is ``whole``."""
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


def broken_rules(entry: Entry) -> Iterator[tuple[Node, str]]:
    """Yields keys that contradict the model's canary: where, and what is wrong."""
    if entry.keys.canary is not None and entry.keys.layout == "ensemble":
        why = "its requests pass through Triton's own scheduler, which knows no arms"
        yield entry.given["canary"], f"needs layout: single; of an ensemble {why}"


@dataclass(frozen=True)
class Target:
    """Another entry that a model named ``owner`` shares its requests with, and where it says so."""

    node: Node
    owner: str

    @property
    def name(self) -> str:
        return str(self.node.value)


def refuse_targets(
    targets: Iterable[Target],
    names: Iterable[str],
    specs: Iterable[ModelSpec],
    report: Report,
) -> None:
    """Reports each target that can't answer for its owner. ``names`` are those of all entries,
    ``specs`` the entries that are right by themselves.
    """
    known = dict.fromkeys(names)
    by_name = {spec.name: spec for spec in specs}
    for target in targets:
        for message in _problems(target, known, by_name):
            report.add(target.node, message)


def _problems(
    target: Target, names: Collection[str], specs: Mapping[str, ModelSpec]
) -> Iterator[str]:
    shown = schema.show(target.node)
    if target.name == target.owner:
        yield f"got {shown}, which is this model itself; expected another one"
    elif target.name not in names:
        others = [name for name in names if name != target.owner]
        hint = schema.did_you_mean(target.name, others, "models")
        yield f"got {shown}, which is no model of this file{hint}"
    elif target.owner in specs and target.name in specs:
        owner, other = specs[target.owner], specs[target.name]
        yield from _differences(owner, other)
        if other.load != "always":
            waits = "requests that are routed do not wait for it; expected load: always"
            yield f"'{other.name}' has load: {other.load}, and {waits}"
        if other.canary is not None:
            yield (
                f"'{other.name}' has a canary of its own, and a routed request is not routed "
                "again; name the model that is meant, or take it away there"
            )


def _differences(owner: ModelSpec, other: ModelSpec) -> Iterator[str]:
    """Why one model can't take the other one's requests."""
    if other.ensemble is not None:
        yield f"'{other.name}' is an ensemble, which only Triton itself can ask; set layout: single"
        return
    if other.layout == "vllm-backend":
        yield f"'{other.name}' runs on NVIDIA's vLLM backend, which only Triton can ask"
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
