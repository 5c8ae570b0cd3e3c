"""Changes single values in the text of a models.yaml and leaves every other character alone.

Works on the places that PyYAML gives to what it parses; no library that writes YAML anew keeps all
of a file's formatting. Knows maps, keys and values; nothing of models. Takes what
generator/yaml_file/nodes.py takes: one document without aliases, merge keys and tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_WORDS = ("null", "true", "false")
_STEP = 2  # columns a map lies deeper than its key


class EditError(Exception):
    """The change can't be made without touching what is to stay; says where."""


@dataclass(frozen=True)
class Flow:
    """Text that is put in as it is: a map or a list in one line."""

    text: str


Written = str | int | float | bool | Flow | None


def set_value(text: str, model: str, path: Sequence[str | int], value: Written) -> str:
    """``text`` with ``value`` under ``path`` in the entry of ``model``; keys that are not there are
    added behind the others of their map. Raises EditError.
    """
    entry = _entry(text, model)
    return _set(text, entry, path, written(value))


def has(text: str, model: str, path: Sequence[str | int]) -> type[yaml.Node] | None:
    """The kind of node that lies there; None where there is none. Raises EditError."""
    found: yaml.Node | None = _entry(text, model)
    for step in path:
        found = _child(found, step) if found is not None else None
    return None if found is None else type(found)


def written(value: Written) -> str:
    """A value as YAML 1.2's core schema reads it back."""
    if isinstance(value, Flow):
        return value.text
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    return repr(value)


def _entry(text: str, model: str) -> yaml.MappingNode:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    models = _child(root, "models")
    for node in models.value if isinstance(models, yaml.SequenceNode) else ():
        name = _child(node, "name")
        if isinstance(node, yaml.MappingNode) and name is not None and name.value == model:
            return node
    raise EditError(f"has no entry with name: {model}")


def _child(node: yaml.Node | None, step: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        found: yaml.Node | None = node.value[step] if step < len(node.value) else None
        return found
    pair = _pair(node, step)
    return None if pair is None else pair[1]


def _pair(node: yaml.Node | None, name: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((pair for pair in pairs if pair[0].value == name), None)


def _set(text: str, node: yaml.Node, path: Sequence[str | int], value: str) -> str:
    step, *rest = path
    if isinstance(step, int):
        child = _child(node, step)
        if child is None or not rest:
            raise EditError(f"{_place(node)}: has no item {step}")
        return _set(text, child, rest, value)
    if not isinstance(node, yaml.MappingNode):
        raise EditError(f"{_place(node)}: is no map that '{step}' could be put in")
    pair = _pair(node, step)
    if pair is None:
        return _added(text, node, [str(each) for each in path], value)
    return _set(text, pair[1], rest, value) if rest else _replaced(text, *pair, value)


def _replaced(text: str, key: yaml.Node, old: yaml.Node, value: str) -> str:
    """A value in the place of another."""
    begin, end = old.start_mark.index, _end(text, old)
    if isinstance(old, yaml.CollectionNode) and not old.flow_style:
        begin = key.end_mark.index
        if "#" in text[begin:end]:
            raise EditError(f"{_place(old)}: a comment lies in what would have to go")
        return f"{text[:begin]}: {value}{text[end:]}"
    if begin == end:  # nothing after the colon
        return f"{text[:begin]} {value}{text[end:]}"
    if isinstance(old, yaml.ScalarNode) and "\n" in text[begin:end]:
        raise EditError(f"{_place(old)}: takes several lines")
    return f"{text[:begin]}{value}{text[end:]}"


def _added(text: str, node: yaml.MappingNode, path: Sequence[str], value: str) -> str:
    """A key, and those above it that are not there, behind the last key of a map."""
    *outer, name = path
    if node.flow_style:
        inside = f"{name}: {value}"
        for key in reversed(outer):
            inside = f"{key}: {{{inside}}}"
        return _added_to_flow(text, node, inside)
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = node.value[0][0].start_mark.column
    lines = [f"{' ' * (indent + _STEP * depth)}{key}:" for depth, key in enumerate(path)]
    lines[-1] += f" {value}"
    end = _line_end(text, _end(text, node))
    return text[:end] + newline + newline.join(lines) + text[end:]


def _added_to_flow(text: str, node: yaml.MappingNode, inside: str) -> str:
    if not node.value:
        begin = node.start_mark.index + 1
        return f"{text[:begin]}{inside}{text[begin:]}"
    end = _end(text, node.value[-1][1])
    return f"{text[:end]}, {inside}{text[end:]}"


def _end(text: str, node: yaml.Node) -> int:
    """Where a node's own characters end: PyYAML has the end of a block only at what follows it."""
    if isinstance(node, yaml.CollectionNode):
        if node.flow_style or not node.value:
            return int(node.end_mark.index)
        last = node.value[-1]
        return _end(text, last[1] if isinstance(last, tuple) else last)
    end = int(node.end_mark.index)
    if getattr(node, "style", None) in ("|", ">"):
        return len(text[:end].rstrip())
    return end


def _line_end(text: str, index: int) -> int:
    """Behind the comment, if any, of the line."""
    end = text.find("\n", index)
    if end < 0:
        return len(text)
    return end - 1 if text[end - 1] == "\r" else end


def _place(node: yaml.Node) -> str:
    return f"{node.start_mark.line + 1}:{node.start_mark.column + 1}"
