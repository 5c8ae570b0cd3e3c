"""``adapters:`` of a model: LoRA adapters that requests choose by name.

Knows the keys and the rules between them and the model's; what an adapter's files must hold is
found out where the model loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.models_yaml.features.entry import Entry
from generator.spec.model_source import REVISION, find_source
from generator.spec.model_spec import Adapter
from generator.yaml_file import schema
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Check, Report

MAX_ADAPTERS = 256
_REQUIRED = ("name", "model")


@dataclass(frozen=True)
class AdapterEntry:
    """One adapter as it is written, and where."""

    node: Node
    values: Mapping[str, Any]


def check(node: Node, report: Report) -> tuple[AdapterEntry, ...] | None:
    """The entries of a list of maps with name, model and revision; each mistake is reported."""
    found: tuple[AdapterEntry, ...] | None = schema.list_of(
        _entry, "a list of maps with name, model and revision"
    )(node, report)
    if found is not None and len(found) > MAX_ADAPTERS:
        report.add(node, f"got {len(found)} adapters, expected at most {MAX_ADAPTERS}")
    seen: dict[str, Node] = {}
    for entry in found or ():
        name, place = entry.values.get("name"), entry.node.get("name")
        if name is not None and place is not None:
            other = seen.setdefault(name.lower(), place)
            if other is not place:
                line = f"already the name of the adapter in line {other.line}"
                report.add(place, f"got {schema.show(place)}, {line}")
    return found


def _entry(node: Node, report: Report) -> AdapterEntry:
    keys: dict[str, Check] = {
        "name": schema.name(64),
        "model": schema.text("a Hub id or a local path"),
        "revision": REVISION,
    }
    values = schema.mapping(keys, "a map with name, model and revision")(node, report)
    if isinstance(node.value, dict):
        for name in _REQUIRED:
            if node.get(name) is None:
                report.add(node, f"missing key '{name}'")
    return AdapterEntry(node, values)


def find_adapters(
    entries: Sequence[AdapterEntry], base: Path, report: Report
) -> tuple[Adapter, ...]:
    """Where each adapter comes from, paths relative to ``base``; reports those that are nowhere."""
    return tuple(adapter for entry in entries for adapter in _found(entry, base, report))


def _found(entry: AdapterEntry, base: Path, report: Report) -> Iterator[Adapter]:
    place, values = entry.node.get("model"), entry.values
    if place is None or not set(_REQUIRED) <= set(values):
        return  # told of already
    source = find_source(place, values["model"], base, report)
    if source is None:
        return
    revision = entry.node.get("revision")
    places = {"model": place, **({"revision": revision} if revision else {})}
    kind = source.without_revisions
    if revision is not None and kind and values.get("revision") is not None:
        report.add(revision, f"only an adapter on the Hub has revisions, and 'model' is {kind}")
        return
    yield Adapter(values["name"], source, values.get("revision"), places=places)


def broken_rules(entry: Entry) -> Iterator[tuple[Node, str]]:
    """Each rule that a model's adapters break: where, and what is wrong."""
    given, task = entry.given, entry.task
    if not entry.values.get("adapters") or task is None:
        return
    node = given["adapters"]
    if not task.has_adapters:
        yield node, f"expected none: no model of {task.tag} serves adapters"
        return
    options = given.get("options")
    engine = options.get("engine") if options is not None else None
    if engine is not None and engine.value == "generate":
        yield engine, "got 'generate', which serves no adapters; expected auto, in_flight or vllm"
