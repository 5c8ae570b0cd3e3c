"""A model's keys over those of ``defaults:``, or an arm's over its model's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from generator.yaml_nodes import Key, Node

_MERGED_MAPS = ("options", "dynamic_batching", "ensemble")


def merge(defaults: Mapping[str, Node], own: Mapping[str, Node]) -> dict[str, Node]:
    """``own`` over ``defaults``: its maps key by key, everything else whole."""
    merged = {**defaults, **own}
    for name in _MERGED_MAPS:
        lower, upper = defaults.get(name), own.get(name)
        if lower is not None and upper is not None:
            merged[name] = _merge_maps(lower, upper)
    return merged


def _merge_maps(lower: Node, upper: Node) -> Node:
    if not isinstance(lower.value, dict) or not isinstance(upper.value, dict):
        return upper
    overridden = {key.name for key in upper.value}
    kept: dict[Key, Node] = {
        key: node for key, node in lower.value.items() if key.name not in overridden
    }
    return dataclasses.replace(upper, value={**kept, **upper.value})
