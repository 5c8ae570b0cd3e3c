"""Writes settings into models.yaml: only these keys, and only if it then reads as measured."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from generator.errors import PerfError, SpecError
from generator.models_yaml.reading import load
from generator.repository.staging import write
from generator.spec.model_spec import ModelSpec
from generator.yaml_file.keys import plain
from perf.tune.space import INSTANCES, Settings, current, entry_with, settings_text


class EditError(Exception):
    """The change would touch other parts of the file; the text says where."""


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
    except (EditError, yaml.YAMLError) as error:
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
    target = config.resolve()
    mode = target.stat().st_mode
    write(str(target), new.encode())
    target.chmod(mode)


def set_value(text: str, model: str, key: str, entry: Mapping[str, Any]) -> str:
    """``text`` with the value that ``entry`` has for ``key``, in the entry of ``model``. Raises
    EditError. Every other character stays: edits go by the positions of PyYAML's nodes, because
    libraries that write YAML anew lose formatting.
    """
    path: list[Any] = ["instance_group", 0, "count"] if key == INSTANCES else key.split(".")
    node: yaml.Node = _entry(text, model)
    value: Any = entry
    for step in path:
        child = _child(node, step)
        if child is None and isinstance(node, yaml.MappingNode) and isinstance(value, Mapping):
            return _added(text, node, step, value[step])
        if child is None or not isinstance(value, Mapping | list):
            break  # as in `dynamic_batching: true`
        node, value = child, value[step]
    return _replaced(text, node, value)


def _written(value: object) -> str:
    """Formats a value on one line."""
    text = yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=math.inf)
    return str(text).strip()[1:-1]


def _entry(text: str, model: str) -> yaml.Node:
    models = _child(yaml.compose(text, Loader=yaml.SafeLoader), "models")
    for node in models.value if isinstance(models, yaml.SequenceNode) else ():
        name = _child(node, "name")
        if name is not None and name.value == model:
            found: yaml.Node = node
            return found
    raise EditError(f"has no entry with name: {model}")


def _child(node: yaml.Node | None, step: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode):
        return next(iter(node.value[step:]), None) if isinstance(step, int) else None
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == step), None)


def _replaced(text: str, old: yaml.Node, value: object) -> str:
    begin, end = old.start_mark.index, old.end_mark.index
    if "\n" in text[begin:end]:
        raise EditError(f"{_place(old)}: takes several lines")
    colon = " " if begin == end else ""  # the key had no value
    return f"{text[:begin]}{colon}{_written(value)}{text[end:]}"


def _added(text: str, node: yaml.MappingNode, key: str | int, value: object) -> str:
    if not node.value:
        return _replaced(text, node, {key: value})
    end, said = _end(text, node), f"{key}: {_written(value)}"
    if node.flow_style:
        return f"{text[:end]}, {said}{text[end:]}"
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = " " * node.value[0][0].start_mark.column
    end += len(text[end:].split("\n", 1)[0].removesuffix("\r"))  # behind the line's comment
    return f"{text[:end]}{newline}{indent}{said}{text[end:]}"


def _end(text: str, node: yaml.Node) -> int:
    """Returns the end of a map's last value; PyYAML puts the end of a block at the next token."""
    last: yaml.Node = node.value[-1][1]
    while isinstance(last, yaml.CollectionNode) and last.value and not last.flow_style:
        inner = last.value[-1]
        last = inner[1] if isinstance(inner, tuple) else inner
    return len(text[: last.end_mark.index].rstrip())


def _place(node: yaml.Node) -> str:
    return f"{node.start_mark.line + 1}:{node.start_mark.column + 1}"
