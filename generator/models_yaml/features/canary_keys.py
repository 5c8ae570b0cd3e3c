"""The key ``canary`` of an entry: the arms that share its requests.

What it says about other entries is checked when all are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from generator.spec.model_spec import Arm, Canary, ModelSpec
from generator.yaml_file import schema
from generator.yaml_file.nodes import Key, Node
from generator.yaml_file.schema import Report

# The keys that an arm may override: they may change its answers, but not how requests look.
OVERRIDES = (
    "model",
    "revision",
    "dtype",
    "quantization",
    "device_map",
    "trust_remote_code",
    "allow_pickle",
    "allow_missing_weights",
    "dynamic_batching",
    "instance_group",
    "version_policy",
    "hooks",
    "python_env",
    "metrics",
    "response_cache",
    "options",
)
REQUEST_ID = "request_id"
# A weight is a number of thousandths, so that requests can be dealt out exactly.
_DECIMALS = 3
_NAME = schema.name(64)
_STICKY = schema.text(
    f"{REQUEST_ID}, or the name of an input tensor or request parameter", r"[A-Za-z_][\w.-]{0,127}"
)
# What Triton keeps for itself: a model never sees it.
_NEVER_SEEN = ("id", "timeout", "priority", "sequence_start", "sequence_end", "sequence_id")


@dataclass(frozen=True)
class Branch:
    """An arm as it is written: ``to`` another entry, with keys of its own, or neither."""

    node: Node
    name: str
    share: Fraction
    to: Node | None
    overrides: Mapping[str, Node]

    def model_of(self, owner: str) -> str:
        """The entry that answers, of a model named ``owner``."""
        if self.to is not None:
            return str(self.to.value)
        return f"{owner}_{self.name}" if self.overrides else owner

    def entry(self, owner: str) -> Node:
        """What stands in models.yaml for it, as if it were a model's entry."""
        place = self.node.get("name") or self.node
        key = Key("name", place.line, place.column, place.where)
        name = dataclasses.replace(place, value=self.model_of(owner), written="")
        keys = {key: name}
        for name_, node in self.overrides.items():
            keys[Key(name_, node.line, node.column, node.where)] = node
        return dataclasses.replace(self.node, value=keys)

    def inherited(self, given: Mapping[str, Node]) -> dict[str, Node]:
        """What it has from its model, whose keys are ``given``."""
        left_out = {"name", "served_names", "canary"}
        if "model" in self.overrides:
            left_out.add("revision")  # of another repository
        return {name: node for name, node in given.items() if name not in left_out}


@dataclass(frozen=True)
class Routes:
    """What the key of a model says."""

    branches: tuple[Branch, ...] = ()
    sticky: str | None = None

    def canary(self, owner: str) -> Canary | None:
        """The arms of the model ``owner``; None without any."""
        if not self.branches:
            return None
        arms = (Arm(one.name, one.model_of(owner), one.share) for one in self.branches)
        return Canary(tuple(arms), self.sticky)


def read(given: Mapping[str, Node], known: Collection[str], report: Report) -> Routes:
    """What a model's keys say; each mistake is reported. ``known`` are all keys of a model."""
    canary, layout = given.get("canary"), given.get("layout")
    if canary is None or canary.value is None:
        return Routes()
    routes = _canary(canary, known, report)
    if layout is not None and layout.value == "ensemble" and routes.branches:
        why = "its requests pass through Triton's own scheduler, which knows no arms"
        report.add(canary, f"needs layout: single; of an ensemble {why}")
    return routes


def _canary(node: Node, known: Collection[str], report: Report) -> Routes:
    top = schema.keys_of(node, ("arms", "sticky"), report, "a map with arms and sticky")
    name = top.get("sticky")
    sticky = _sticky(name, report) if name is not None and name.value is not None else None
    arms = top.get("arms")
    if arms is None:
        if isinstance(node.value, dict):
            report.add(node, "missing key 'arms': the list of who shares the requests")
        return Routes()
    if not isinstance(arms.value, list) or len(arms.value) < 2:
        number = len(arms.value) if isinstance(arms.value, list) else schema.show(arms)
        report.add(arms, f"got {number}, expected a list of two or more arms")
        return Routes()
    before = len(report.problems)
    found = [branch for child in arms.value if (branch := _arm(child, known, report))]
    if len(report.problems) == before:
        _check_together(arms, found, report)
    return Routes(tuple(found), sticky=sticky)


def _arm(node: Node, known: Collection[str], report: Report) -> Branch | None:
    entries = _entries(node, known, report)
    name = _required(node, entries, "name", _NAME, report)
    weight = _required(node, entries, "weight", schema.number(0, 100, unit="percent"), report)
    share = _exact(entries.get("weight"), weight, report)
    to, overrides = _direction(entries, report)
    return None if name is None else Branch(node, str(name), share, to, overrides)


def _entries(node: Node, known: Collection[str], report: Report) -> dict[str, Node]:
    """The keys of an arm; those that it can't have otherwise than its model are told apart from
    those that nothing has.
    """
    allowed = ("name", "weight", "to", *OVERRIDES)
    entries = schema.keys_of(node, (*allowed, *known), report, "a map with name, weight and others")
    for key in node.value if isinstance(node.value, dict) else ():
        if key.name in known and key.name not in allowed:
            message = f"an arm is asked like its model, so it can't have '{key.name}' of its own"
            report.add(key, message)
    return {name: child for name, child in entries.items() if name in allowed}


def _required(
    node: Node, entries: Mapping[str, Node], name: str, check: schema.Check, report: Report
) -> object:
    child = entries.get(name)
    if child is not None:
        return check(child, report)
    if isinstance(node.value, dict):
        report.add(node, f"missing key '{name}'")
    return None


def _exact(node: Node | None, value: object, report: Report) -> Fraction:
    """A share as it is written: 0.1 is a tenth."""
    if not isinstance(value, float):
        return Fraction(0)
    share = Fraction(repr(value))
    if node is not None and (share * 10**_DECIMALS).denominator != 1:
        report.add(node, f"got {schema.show(node)}, expected at most {_DECIMALS} decimals")
    return share


def _direction(entries: Mapping[str, Node], report: Report) -> tuple[Node | None, dict[str, Node]]:
    to = entries.get("to")
    overrides = {name: node for name, node in entries.items() if name in OVERRIDES}
    if to is not None and not isinstance(to.value, str):
        report.expected(to, "the name of another model of this file")
        return None, {}
    if to is not None and overrides:
        named = ", ".join(overrides)
        report.add(to, f"that model has its own {named}; give 'to' or keys that differ, not both")
        return to, {}
    return to, overrides


def _check_together(node: Node, arms: list[Branch], report: Report) -> None:
    own = [arm for arm in arms if arm.to is None and not arm.overrides]
    if len(own) != 1:
        names = ", ".join(arm.name for arm in own) or "none"
        what = "exactly one arm without 'to' and other keys: this model itself"
        report.add(node, f"got {names}, expected {what}")
    for place, message in (*_names_twice(arms), *_targets_twice(arms)):
        report.add(place, message)
    total = sum((arm.share for arm in arms), Fraction(0))
    if total != 100:
        shown = f"{float(total):.{_DECIMALS}f}".rstrip("0").rstrip(".")
        report.add(node, f"weights add up to {shown}, expected 100 (percent)")


def _names_twice(arms: list[Branch]) -> Iterator[tuple[Node, str]]:
    first: dict[str, Branch] = {}
    for arm in arms:
        other = first.setdefault(arm.name.lower(), arm)
        if other is not arm:
            place = arm.node.get("name") or arm.node
            line = (other.node.get("name") or other.node).line
            yield place, f"got {schema.show(place)}, the name of the arm in line {line}"


def _targets_twice(arms: list[Branch]) -> Iterator[tuple[Node, str]]:
    first: dict[object, Node] = {}
    for arm in arms:
        if arm.to is not None:
            other = first.setdefault(arm.to.value, arm.to)
            if other is not arm.to:
                shown = schema.show(arm.to)
                yield arm.to, f"got {shown}, where the arm in line {other.line} leads already"


def _sticky(node: Node, report: Report) -> str | None:
    name: str | None = _STICKY(node, report)
    if name in _NEVER_SEEN:
        report.add(node, f"got {name}, which Triton keeps for itself; use {REQUEST_ID} or another")
        return None
    return name


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
                f"'{other.name}' has a canary of its own, which requests that are routed already "
                "don't pass; name the model that is meant, or take it away there"
            )


def _differences(owner: ModelSpec, other: ModelSpec) -> Iterator[str]:
    """Why one model can't be asked what the other one is."""
    if other.ensemble is not None:
        yield f"'{other.name}' is an ensemble, which only Triton itself can ask; set layout: single"
        return
    if other.layout == "vllm-backend":
        yield f"'{other.name}' runs on NVIDIA's vLLM backend, which answers no model but Triton"
        return
    if other.task != owner.task:
        yield f"'{other.name}' is for {other.task}, expected a model for {owner.task}"
        return
    for key, mine, theirs in (
        ("streaming", str(owner.streaming).lower(), str(other.streaming).lower()),
        ("max_batch_size", str(owner.max_batch_size), str(other.max_batch_size)),
    ):
        if mine != theirs:
            yield f"'{other.name}' has {key} {theirs}, expected {mine} as here: it is asked alike"
    known = {adapter.name for adapter in other.adapters}
    if missing := [adapter.name for adapter in owner.adapters if adapter.name not in known]:
        lacks = f"lacks the adapters {', '.join(missing)}"
        yield f"'{other.name}' {lacks}, which requests may name: it is asked alike"
