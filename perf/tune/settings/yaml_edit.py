"""Changes single values in the text of a models.yaml and leaves every other character alone.

Works on the places that PyYAML gives to what it parses; no library that writes YAML anew keeps all
of a file's formatting. Knows maps, keys and values; nothing of models. Takes what
generator/yaml_file/nodes.py takes: one document without aliases, merge keys and tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import yaml

_PLAIN = re.compile(r"(?!(?i:null|true|false)$)[A-Za-z][A-Za-z0-9_.-]*")
_STEP = 2  # columns a map lies deeper than its key


class EditError(Exception):
    """The change can't be made without touching what is to stay; says where."""


def set_value(text: str, model: str, path: Sequence[str | int], value: object) -> str:
    """``text`` with ``value`` under ``path`` in the entry of ``model``; keys that are not there are
    added behind the others of their map. Raises EditError.
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
    """The node that lies there; None where there is none. Raises EditError."""
    found: yaml.Node | None = _entry(text, model)
    for step in path:
        pair = _pair(found, step)
        found = pair[1] if pair else None
    return found


def written(value: Any) -> str:
    """A value in one line, as YAML 1.2's core schema reads it back."""
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
    """The key and the value of a map, or an item of a list twice."""
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        return (node.value[step],) * 2 if step < len(node.value) else None
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((pair for pair in pairs if pair[0].value == step), None)


def _replaced(text: str, key: yaml.Node, old: yaml.Node, value: str) -> str:
    """A value in the place of another."""
    begin, end = old.start_mark.index, _end(text, old)
    before = ""
    if isinstance(old, yaml.CollectionNode) and not old.flow_style:
        begin, before = key.end_mark.index, ": "
        if "#" in text[begin:end]:
            raise EditError(f"{_place(old)}: a comment lies in what would have to go")
    elif begin == end:  # nothing after the colon
        before = " "
    elif isinstance(old, yaml.ScalarNode) and "\n" in text[begin:end]:
        raise EditError(f"{_place(old)}: takes several lines")
    return f"{text[:begin]}{before}{value}{text[end:]}"


def _added(text: str, node: yaml.Node, path: Sequence[str | int], value: object) -> str:
    """A key, and those above it that are not there, behind the last key of a map."""
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
    """Where a node's own characters end: PyYAML has the end of a block only at what follows it."""
    end = int(node.end_mark.index)
    if isinstance(node, yaml.CollectionNode):
        if node.flow_style or not node.value:
            return end
        last = node.value[-1]
        return _end(text, last[1] if isinstance(last, tuple) else last)
    return len(text[:end].rstrip()) if getattr(node, "style", None) in ("|", ">") else end


def _place(node: yaml.Node) -> str:
    return f"{node.start_mark.line + 1}:{node.start_mark.column + 1}"
