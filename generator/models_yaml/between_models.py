"""The rules between models, checked when all entries are read: no two may want the same folder, nor
two metrics under one name, and a canary's arms must be able to answer for their model.

Of folders letters' case does not count: on some file systems ``Demo`` and ``demo`` are one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from generator.models_yaml.model_rules import Entry
from generator.spec.model_spec import MAX_NAME, OVERRIDES, Arm, Metric, ModelSpec
from generator.spec.triton_models import ENGINE_SUFFIX, STEP_SUFFIXES
from generator.yaml_file import keys
from generator.yaml_file.nodes import Key, Node, scalars
from generator.yaml_file.schema import Report, did_you_mean, show


def refuse_clashes(entries: Sequence[Entry], report: Report) -> None:
    """Reports each name that another model has taken, and each too long for its other folders."""
    claims = [(node, _suffixes(entry)) for entry in entries for node in _texts(entry, "name")]
    claims += [(node, ()) for entry in entries for node in _texts(entry, "served_names")]
    folders = {
        f"{node.value}{suffix}".lower(): (node, suffix)
        for node, suffixes in claims
        for suffix in suffixes
    }
    first: dict[str, Node] = {}
    for node, suffixes in claims:
        name, got = str(node.value), f"got {show(node)}"
        other = first.setdefault(name.lower(), node)
        if other is not node:
            why = "which differs only in case from the name"
            if other.value == name:
                why = "already the name of the model"
            report.add(node, f"{got}, {why} in line {other.line}")
        elif name.lower() in folders:
            report.add(node, f"{got}, but {_folder_conflict(*folders[name.lower()])}")
        suffix = max(suffixes, key=len, default="")
        longest = MAX_NAME - len(suffix)
        if longest < len(name) <= MAX_NAME:
            what = "a model that streams" if suffix == ENGINE_SUFFIX else "an ensemble"
            why = f"{what} needs {len(suffix)} more for '<name>{suffix}'"
            report.add(node, f"got {len(name)} characters, expected at most {longest}: {why}")


def _suffixes(entry: Entry) -> tuple[str, ...]:
    """The ends of the names of the entry's other folders."""
    if entry.keys.layout == "ensemble":
        return STEP_SUFFIXES
    return (ENGINE_SUFFIX,) if entry.keys.streaming else ()


def _texts(entry: Entry, key: str) -> list[Node]:
    """A text, or those of a list, that the entry itself has under ``key``."""
    node = entry.own.get(key)
    found = () if node is None else scalars(node)
    return [one for one in found if isinstance(one.value, str)]


def _folder_conflict(owner: Node, suffix: str) -> str:
    folder, line = f"{owner.value}{suffix}", owner.line
    if suffix == ENGINE_SUFFIX:
        holds = f"'{folder}' holds the engine of the model in line {line}, which streams"
        return f"{holds}; rename one of them, or set 'streaming: false' there"
    return f"'{folder}' is a step of the ensemble in line {line}; rename one of them"


def refuse_differences(entries: Iterable[Entry], report: Report) -> None:
    """Reports a metric that another model declares otherwise: on /metrics they are one."""
    first: dict[str, tuple[Node, Metric]] = {}
    for entry in entries:
        for name, metric in entry.keys.metrics.items():
            node = entry.given["metrics"].entries[name]
            other, declared = first.setdefault(name, (node, metric))
            if declared != metric:
                line = f"the metric of this name in line {other.line}"
                report.add(node, f"differs from {line}; expected the same, or another name")


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


def branches(canary: Node | None) -> list[Branch]:
    """The arms that are right by themselves; mistakes are reported with the model's own."""
    arms = None if canary is None else canary.get("arms")
    nodes = [] if arms is None else arms.items
    found = ((node, keys.read(Arm, node, Report())) for node in nodes)
    return [Branch(node, arm) for node, arm in found if arm is not None]


def refuse_targets(entries: Sequence[Entry], specs: Iterable[ModelSpec], report: Report) -> None:
    """Reports each arm of another entry that can't answer for its owner; ``specs`` are the correct
    entries.
    """
    names = (str(node.value) for entry in entries for node in _texts(entry, "name"))
    known = dict.fromkeys(names)
    by_name = {spec.name: spec for spec in specs}
    for entry in entries:
        for branch in branches(entry.given.get("canary")) if _texts(entry, "name") else ():
            node, mine = branch.node.get("to"), str(entry.given["name"].value)
            if node is not None and branch.arm.to is not None:
                others = [name for name in known if name != mine]
                for message in _arm_problems(node, mine, others, by_name):
                    report.add(node, message)


def _arm_problems(
    node: Node, mine: str, others: Collection[str], specs: Mapping[str, ModelSpec]
) -> Iterator[str]:
    name, got = str(node.value), f"got {show(node)}, which is"
    owner, other = specs.get(mine), specs.get(name)
    if name == mine:
        yield f"{got} this model itself; expected another one"
    elif name not in others:
        yield f"{got} no model of this file{did_you_mean(name, others, 'models')}"
    elif owner is not None and other is not None:
        yield from _differences(owner, other)


def _differences(owner: ModelSpec, other: ModelSpec) -> Iterator[str]:
    """Yields the reasons why ``other`` can't take the requests of ``owner``."""
    if other.load != "always":
        waits = "routed requests don't wait for its load; expected load: always"
        yield f"'{other.name}' has load: {other.load}, and {waits}"
    if other.canary is not None:
        yield (
            f"'{other.name}' has a canary of its own, and a routed request is not routed again; "
            "name the model that is meant, or remove it there"
        )
    if other.ensemble is not None:
        yield f"'{other.name}' is an ensemble, which only Triton itself can ask; set layout: single"
        return
    if other.task != owner.task:
        yield f"'{other.name}' is for {other.task}, expected a model for {owner.task}"
        return
    for key, own_value, other_value in (
        ("streaming", str(owner.streaming).lower(), str(other.streaming).lower()),
        ("max_batch_size", str(owner.max_batch_size), str(other.max_batch_size)),
    ):
        if own_value != other_value:
            same = "it gets the same requests"
            yield f"'{other.name}' has {key} {other_value}, expected {own_value} as here: {same}"
    known = {adapter.name for adapter in other.adapters or ()}
    if missing := [one.name for one in owner.adapters or () if one.name not in known]:
        lacks = f"lacks the adapters {', '.join(missing)}"
        yield f"'{other.name}' {lacks}, which requests may name"
