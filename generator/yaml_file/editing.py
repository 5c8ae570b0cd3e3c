"""Edits the text of a YAML file by the positions of PyYAML's nodes: every other character stays,
because libraries that write YAML anew lose formatting (ruamel.yaml too: spaces, indentation).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

# What YAML 1.2, which our own reader follows, reads back as text.
_PLAIN = re.compile(r"(\.{0,2}/|~/)?[A-Za-z][A-Za-z0-9_./-]*")
_WORDS = ("null", "true", "false")


class EditError(Exception):
    """The change would touch other parts of the file; the text says where."""


def composed(text: str) -> yaml.Node | None:
    """Raises EditError where ``text`` is not YAML."""
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise EditError(str(error)) from None


def child(node: yaml.Node | None, step: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode):
        return next(iter(node.value[step:]), None) if isinstance(step, int) else None
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == step), None)


def replaced(text: str, old: yaml.Node, value: object) -> str:
    begin, end = old.start_mark.index, old.end_mark.index
    if "\n" in text[begin:end]:
        place = f"{old.start_mark.line + 1}:{old.start_mark.column + 1}"
        raise EditError(f"{place}: takes several lines")
    colon = " " if begin == end else ""  # the key had no value
    return f"{text[:begin]}{colon}{_written(value)}{text[end:]}"


def added(text: str, node: yaml.MappingNode, key: str | int, value: object) -> str:
    """``text`` with a further key in a map."""
    if not node.value:
        return replaced(text, node, {key: value})
    end, said = _end(text, node.value[-1][1]), f"{key}: {_written(value)}"
    if node.flow_style:
        return f"{text[:end]}, {said}{text[end:]}"
    end += len(text[end:].split("\n", 1)[0].removesuffix("\r"))  # behind the line's comment
    return _with_lines(text, end, node.value[0][0].start_mark.column, [said])


def with_item(text: str, key: str, item: Mapping[str, object]) -> str:
    """``text`` with ``item`` behind the others of the list under ``key``. Raises EditError."""
    root = composed(text)
    items = child(root, key)
    said = [f"{name}: {_written(value)}" for name, value in item.items()]
    lines = [f"- {said[0]}", *(f"  {line}" for line in said[1:])]
    if items is None and isinstance(root, yaml.MappingNode) and root.flow_style:
        return added(text, root, key, [item])
    if items is None:
        return _with_lines(text, len(text.rstrip()), 0, [f"{key}:", *(f"  {one}" for one in lines)])
    if not isinstance(items, yaml.SequenceNode) or not items.value:
        return replaced(text, items, [item])
    column, end = items.start_mark.column, _end(text, items.value[-1])
    if items.flow_style:
        return f"{text[:end]}, {_written(item)}{text[end:]}"
    # Comments that are indented like the last item's keys, or deeper, are the item's.
    of_item = rf"[^\n]*(?:\n(?:[ \t\r]*(?=\n)|[ ]{{{column + 1},}}#[^\n]*))*"
    found = re.compile(of_item).match(text, end)
    end = len(text[: found.end() if found else end].rstrip())
    return _with_lines(text, end, column, lines)


def _with_lines(text: str, end: int, column: int, lines: list[str]) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    block = "".join(f"{newline}{' ' * column}{line}" for line in lines)
    return f"{text[:end]}{block}{text[end:]}"


class _Dumper(yaml.SafeDumper):
    """Quotes what would not be read back as text."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


_Dumper.add_representer(str, _represent_text)


def dumped(value: object, **style: Any) -> str:
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=math.inf, **style))


def _written(value: object) -> str:
    """Formats a value on one line."""
    return dumped([value], default_flow_style=True).strip()[1:-1]


def _end(text: str, node: yaml.Node) -> int:
    """Returns the end of a value; PyYAML puts the end of a block at the next token."""
    if isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(last, tuple) else last)
    return len(text[: node.end_mark.index].rstrip())
