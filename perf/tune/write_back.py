"""Writes settings into models.yaml: only these keys, and only if it then reads as measured."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from generator.errors import PerfError, SpecError
from generator.models_yaml.reading import load
from generator.repository.staging import write
from generator.spec.model_spec import ModelSpec
from generator.yaml_file.keys import plain
from perf.tune.space import DELAY, INSTANCES, Settings, current, entry_with, settings_text

_PLAIN = re.compile(r"(?!(?i:null|true|false)$)[A-Za-z][A-Za-z0-9_.-]*")
_STEP = 2  # columns of indentation
_BOM = "\ufeff"


class EditError(Exception):
    """The change would touch other parts of the file; the text says where."""


def write_settings(config: Path, name: str, now: Settings, wanted: Settings) -> str:
    """Returns the diff; empty without changes. Raises PerfError where the file no longer says
    ``now``, these keys can't be changed alone, or it can't be written; SpecError.
    """
    before = {spec.name: spec for spec in load(config)}
    if name not in before:
        raise PerfError(f"{config}: model '{name}' is gone; nothing was written")
    if current(before[name], now) != dict(now):
        raise PerfError(
            f"{config}: model '{name}' was changed since it was measured; nothing was written"
        )
    old = config.read_bytes().decode("utf-8")
    changes = {key: value for key, value in wanted.items() if value != now[key]}
    entry = entry_with({key: plain(node) for key, node in before[name].places.items()}, wanted)
    try:
        text = old.removeprefix(_BOM)
        for key in changes:
            text = set_value(text, name, *_change(text, name, key, entry))
        new = old[: old.startswith(_BOM)] + text
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


def _change(
    text: str, name: str, key: str, entry: Mapping[str, Any]
) -> tuple[Sequence[str | int], object]:
    """The path in a model's entry, and the value there by which it says what ``entry`` says."""
    path: list[str | int] = (
        ["instance_group", 0, "count"] if key == INSTANCES else [*key.split(".")]
    )
    is_there = isinstance(find(text, name, path[:-1]), yaml.MappingNode)
    whole: Any = entry[str(path[0])]
    if key in (DELAY, INSTANCES) and not (is_there and whole):
        return path[:1], whole
    for step in path[1:]:
        whole = whole[step]
    return path, whole


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


def set_value(text: str, model: str, path: Sequence[str | int], value: object) -> str:
    """``text`` with ``value`` at ``path`` in the entry of ``model``. Raises EditError. Every other
    character stays: edits go by the positions of PyYAML's nodes, because libraries that write YAML
    anew lose formatting.
    """
    key, node = None, _entry(text, model)
    for depth, step in enumerate(path):
        pair = _pair(node, step)
        if pair is None:
            return _added(text, node, path[depth:], value)
        key, node = pair
    assert key is not None
    return _replaced(text, key, node, written(value))


def find(text: str, model: str, path: Sequence[str | int]) -> yaml.Node | None:
    """The node at ``path``; None where there is none. Raises EditError."""
    found: yaml.Node | None = _entry(text, model)
    for step in path:
        pair = _pair(found, step)
        found = pair[1] if pair else None
    return found


def written(value: Any) -> str:
    """Formats a value on one line that YAML 1.2's core schema reads back as equal."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    is_plain = isinstance(value, str) and _PLAIN.fullmatch(value)
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False)


def _entry(text: str, model: str) -> yaml.Node:
    models = _pair(yaml.compose(text, Loader=yaml.SafeLoader), "models")
    for node in models[1].value if models and isinstance(models[1], yaml.SequenceNode) else ():
        name = _pair(node, "name")
        if name is not None and name[1].value == model:
            found: yaml.Node = node
            return found
    raise EditError(f"has no entry with name: {model}")


def _pair(node: yaml.Node | None, step: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        return (node.value[step],) * 2 if step < len(node.value) else None
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((pair for pair in pairs if pair[0].value == step), None)


def _replaced(text: str, key: yaml.Node, old: yaml.Node, value: str) -> str:
    begin, end = old.start_mark.index, _end(text, old)
    before = ""
    if isinstance(old, yaml.CollectionNode) and not old.flow_style:
        begin, before = key.end_mark.index, ": "
        if "#" in text[begin:end]:
            raise EditError(f"{_place(old)}: a comment stands in the part to be replaced")
    elif begin == end:  # nothing after the colon
        before = " "
    elif isinstance(old, yaml.ScalarNode) and "\n" in text[begin:end]:
        raise EditError(f"{_place(old)}: takes several lines")
    return f"{text[:begin]}{before}{value}{text[end:]}"


def _added(text: str, node: yaml.Node, path: Sequence[str | int], value: object) -> str:
    if not isinstance(node, yaml.MappingNode):
        raise EditError(f"{_place(node)}: is no map that '{path[0]}' could be put in")
    if node.flow_style:
        for key in reversed(path):
            value = {key: value}
        inside = written(value)[1:-1]
        last = node.value[-1][1] if node.value else None
        end = _end(text, last) if last else node.start_mark.index + 1
        return f"{text[:end]}{', ' if last else ''}{inside}{text[end:]}"
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = node.value[0][0].start_mark.column
    lines = [f"{newline}{' ' * (indent + _STEP * depth)}{key}:" for depth, key in enumerate(path)]
    end = _end(text, node)
    end += len(text[end:].split("\n", 1)[0].removesuffix("\r"))  # behind the line's comment
    return f"{text[:end]}{''.join(lines)} {written(value)}{text[end:]}"


def _end(text: str, node: yaml.Node) -> int:
    """The end of a node's own characters; PyYAML reports the end of a block at the next token."""
    end = int(node.end_mark.index)
    if isinstance(node, yaml.CollectionNode):
        if node.flow_style or not node.value:
            return end
        last = node.value[-1]
        return _end(text, last[1] if isinstance(last, tuple) else last)
    return len(text[:end].rstrip()) if getattr(node, "style", None) in ("|", ">") else end


def _place(node: yaml.Node) -> str:
    return f"{node.start_mark.line + 1}:{node.start_mark.column + 1}"
