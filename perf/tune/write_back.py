"""Writes settings into models.yaml: only these keys, and only if it then reads as measured."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from generator.errors import PerfError, SpecError
from generator.models_yaml.reading import load
from generator.repository.staging import write_through
from generator.spec.model_spec import ModelSpec
from generator.yaml_file.editing import EditError, added, child, composed, replaced
from generator.yaml_file.keys import plain
from perf.tune.space import INSTANCES, Settings, current, entry_with, settings_text


def write_settings(config: Path, name: str, wanted: Settings) -> str:
    """Returns the diff; empty without changes. Raises PerfError where these keys can't be changed
    alone or the file can't be written, SpecError.
    """
    before = {spec.name: spec for spec in load(config)}
    if name not in before:
        raise PerfError(f"{config}: model '{name}' is gone; nothing was written")
    old = config.read_bytes().decode("utf-8")
    now = current(before[name], wanted)
    changes = {key: value for key, value in wanted.items() if value != now[key]}
    entry = entry_with({key: plain(node) for key, node in before[name].places.items()}, wanted)
    try:
        new = old
        for key in changes:
            new = set_value(new, name, key, entry)
        if new != old:
            _replace(config, new, before, name, wanted)
    except EditError as error:
        raise PerfError(
            f"{config}: {error}; nothing was written, set these yourself: {settings_text(changes)}"
        ) from None
    except OSError as error:
        raise PerfError(f"{config}: can't be written: {error.strerror}; it is as it was") from None
    before_it, after_it = (each.splitlines(keepends=True) for each in (old, new))
    lines = difflib.unified_diff(before_it, after_it, str(config), str(config))
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _replace(
    config: Path,
    new: str,
    before: Mapping[str, ModelSpec],
    name: str,
    wanted: Settings,
) -> None:
    """Raises EditError where anything else would change."""
    try:
        after = {spec.name: spec for spec in load(config, new.encode())}
    except SpecError as error:
        problems = (f"{each.where}: {each.message}" for each in error.problems)
        raise EditError("; ".join(problems)) from None
    entries = [
        entry_with({key: plain(node) for key, node in specs[name].places.items()}, wanted)
        for specs in (before, after)
    ]
    others = [{**specs, name: None} for specs in (before, after)]
    is_right = current(after[name], wanted) == dict(wanted)
    if not is_right or entries[0] != entries[1] or others[0] != others[1]:
        raise EditError("more than these keys would change")
    write_through(config, new.encode())


def set_value(text: str, model: str, key: str, entry: Mapping[str, Any]) -> str:
    """``text`` with the value that ``entry`` has for ``key``, in the entry of ``model``. Raises
    EditError.
    """
    path: list[Any] = ["instance_group", 0, "count"] if key == INSTANCES else key.split(".")
    node: yaml.Node = _entry(text, model)
    value: Any = entry
    for step in path:
        found = child(node, step)
        if found is None and isinstance(node, yaml.MappingNode) and isinstance(value, Mapping):
            return added(text, node, step, value[step])
        if found is None or not isinstance(value, Mapping | list):
            break  # as in `dynamic_batching: true`
        node, value = found, value[step]
    return replaced(text, node, value)


def _entry(text: str, model: str) -> yaml.Node:
    models = child(composed(text), "models")
    for node in models.value if isinstance(models, yaml.SequenceNode) else ():
        name = child(node, "name")
        if name is not None and name.value == model:
            found: yaml.Node = node
            return found
    raise EditError(f"has no entry with name: {model}")
