"""``adapters:`` of a model: LoRA adapters that requests choose by name; ``adapters_from:``, where
those may come from that requests load.

Knows the keys and the rules between them and the model's; what an adapter's files must hold is
found out where the model loads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.models_yaml.features.entry import Entry
from generator.spec.model_source import REVISION, Source, find_source
from generator.spec.model_spec import MAX_ADAPTER_NAME, MAX_ADAPTERS, Adapter
from generator.spec.runtime_rules import is_stored
from generator.yaml_file import schema
from generator.yaml_file.nodes import Node, scalars
from generator.yaml_file.schema import Check, Report

_REQUIRED = ("name", "model")
_OF_ORG = re.compile(r"[A-Za-z0-9_][\w.-]*/\*", re.ASCII)
SOURCES = schema.list_of(
    schema.text("a folder (./folder), a Hub id (org/name), or all of somebody's (org/*)"),
    "a list of folders and Hub ids",
    unique=True,
)


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
        "name": schema.name(MAX_ADAPTER_NAME),
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


def find_sources(
    given: Mapping[str, Node], values: Mapping[str, Any], base: Path, report: Report
) -> tuple[Source, ...]:
    """The folders, paths relative to ``base``, and names on the Hub; reports what is neither."""
    nodes = scalars(given["adapters_from"]) if values.get("adapters_from") else ()
    found = (_source(node, base, report) for node in nodes)
    return tuple(source for source in found if source is not None)


def _source(node: Node, base: Path, report: Report) -> Source | None:
    value = node.value
    if not isinstance(value, str):
        return None  # told of already
    if _OF_ORG.fullmatch(value):
        return Source(value, None)
    if is_stored(value):
        report.add(node, f"got {schema.show(node)}: servers ask no object store; use 'adapters'")
        return None
    return find_source(node, value, base, report)


def broken_rules(entry: Entry) -> Iterator[tuple[Node, str]]:
    """Each rule that a model's adapters break: where, and what is wrong."""
    found = [key for key in ("adapters", "adapters_from") if entry.values.get(key)]
    for key in found:
        yield from _broken_rules(entry, key)
    if entry.values.get("max_loaded_adapters") and not found:
        yield entry.given["max_loaded_adapters"], "expected none: the model has no adapters"


def _broken_rules(entry: Entry, key: str) -> Iterator[tuple[Node, str]]:
    given, task = entry.given, entry.task
    if task is None:
        return
    node = given[key]
    if not task.has_adapters:
        yield node, f"expected none: no model of {task.tag} serves adapters"
        return
    options = given.get("options")
    engine = options.get("engine") if options is not None else None
    if engine is not None and engine.value == "generate":
        yield engine, "got 'generate', which serves no adapters; expected auto, in_flight or vllm"
    canary = given.get("canary")
    if key == "adapters_from" and canary is not None and canary.value:
        yield node, "expected none: the model shares its requests, and its arms would lack them"
