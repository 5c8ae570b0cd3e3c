"""``draft_model:`` of a model: a smaller one that drafts tokens for it (speculative decoding).

Knows the keys and the rules between them and the model's; whether both have one vocabulary is found
out where the model loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.models_yaml.features.entry import Entry
from generator.spec.model_source import REVISION, find_source
from generator.spec.model_spec import DraftModel
from generator.yaml_file import schema
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Report

_METHOD = "speculative_method"


@dataclass(frozen=True)
class DraftEntry:
    """The draft model as it is written, and where."""

    node: Node
    values: Mapping[str, Any]


def check(node: Node, report: Report) -> DraftEntry:
    """A map of model and revision; each mistake is reported."""
    keys = {"model": schema.text("a Hub id or a local path"), "revision": REVISION}
    values = schema.mapping(keys, "a map with model and revision")(node, report)
    if isinstance(node.value, dict) and node.get("model") is None:
        report.add(node, "missing key 'model'")
    return DraftEntry(node, values)


def find_draft(entry: DraftEntry | None, base: Path, report: Report) -> DraftModel | None:
    """Where the draft model comes from, seen from ``base``; reports one that is nowhere."""
    place = None if entry is None else entry.node.get("model")
    if entry is None or place is None or "model" not in entry.values:
        return None  # told of already
    source = find_source(place, entry.values["model"], base, report)
    if source is None:
        return None
    revision = entry.node.get("revision")
    kind = source.without_revisions
    if revision is not None and kind and entry.values.get("revision") is not None:
        report.add(revision, f"only a model on the Hub has revisions, and 'model' is {kind}")
        return None
    places = {"model": place, **({"revision": revision} if revision else {})}
    return DraftModel(source, entry.values.get("revision"), places=places)


def broken_rules(entry: Entry) -> Iterator[tuple[Node, str]]:
    """Each rule that a draft model breaks: where, and what is wrong."""
    given, task, options = entry.given, entry.task, entry.options
    if task is None:
        return
    nodes = given.get("options")
    if not entry.values.get("draft_model"):
        method = nodes.get(_METHOD) if nodes is not None else None
        if method is not None and method.value == "draft_model":
            yield method, "got 'draft_model', but the model has no key draft_model that names one"
        return
    node = given["draft_model"]
    if not task.has_draft_model:
        yield node, f"expected none: models of {task.tag} don't draft"
    elif options.get("engine") in ("generate", "vllm"):
        instead = "; say speculative_config in options.vllm" if options["engine"] == "vllm" else ""
        yield node, f"expected none: engine is {options['engine']}, which takes none{instead}"
