"""One entry of models.yaml as the rules between its keys see it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, NamedTuple

from generator.spec.model_spec import ModelKeys
from generator.spec.task_folders import Task
from generator.yaml_file.nodes import Node

_MERGED_MAPS = ("options", "dynamic_batching", "ensemble")


class Entry(NamedTuple):
    """``given`` has the nodes of its keys, the defaults' among them, ``own`` the entry without
    these. Keys that are ``wrong`` have their defaults in ``keys``; wrong ``options`` are empty.
    """

    given: Mapping[str, Node]
    own: Node
    keys: ModelKeys
    wrong: Set[str]
    task: Task | None
    options: Mapping[str, Any]
    tasks: Mapping[str, Task]

    def option(self, name: str) -> Node | None:
        """The place of an option in the file; None where it is not given."""
        options = self.given.get("options")
        return None if options is None else options.get(name)


def merge(defaults: Node | None, own: Node) -> Node:
    """``own`` over ``defaults``: its maps key by key, everything else whole."""
    if defaults is None or not isinstance(own.value, dict):
        return own
    if not isinstance(defaults.value, dict):
        return own
    overridden = {key.name for key in own.value}
    kept = {key: node for key, node in defaults.value.items() if key.name not in overridden}
    merged = {
        key: merge(defaults.get(key.name), node) if key.name in _MERGED_MAPS else node
        for key, node in own.value.items()
    }
    return own._replace(value={**kept, **merged})
