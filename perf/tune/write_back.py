"""Puts settings into the user's models.yaml: only these keys, and only where the file then says
exactly what was measured.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from generator.errors import PerfError, SpecError
from generator.models_yaml.reading import load
from generator.repository.atomic_files import write
from generator.spec.model_spec import ModelSpec
from generator.spec.task_folders import Task
from perf.report.schema import Value
from perf.tune.space import DELAY, INSTANCES, Settings, current, entry_with, plain, settings_text

_PLAIN = re.compile(r"(?!(?i:null|true|false)$)[A-Za-z][A-Za-z0-9_.-]*")
_STEP = 2  # columns a map lies deeper than its key

_BOM = "\ufeff"
_SCRATCH_SUFFIX = ".hf-triton-tmp"  # with the same models.lock beside it


def write_settings(
    config: Path, name: str, now: Settings, wanted: Settings, tasks: Mapping[str, Task]
) -> str:
    """Changes ``config`` in one step and returns the difference; empty where there is none.

    Raises PerfError where the file no longer says ``now``, can't be changed by these keys alone,
    or can't be written; SpecError where it has become wrong meanwhile.
    """
    before = load(config, dict(tasks))
    spec = _named(before, name, config)
    if current(spec, now) != dict(now):
        raise PerfError(
            f"{config}: model '{name}' was changed since it was measured; nothing was written"
        )
    old = config.read_bytes().decode("utf-8")
    bom, text = old[: old.startswith(_BOM)], old.removeprefix(_BOM)
    changes = {key: value for key, value in wanted.items() if value != now[key]}
    try:
        for key, value in changes.items():
            text = _with(text, spec, key, value)
    except (EditError, yaml.YAMLError) as error:
        raise PerfError(_by_hand(config, f"{error}", changes)) from None
    new = bom + text
    if new == old:
        return ""

    def check(scratch: Path) -> None:
        """Raises PerfError where anything but the wanted settings would change."""
        try:
            after = load(scratch, dict(tasks))
        except SpecError as error:
            problems = "; ".join(f"{each.where}: {each.message}" for each in error.problems)
            raise PerfError(_by_hand(config, problems, wanted)) from None
        new_spec = _named(after, name, config)
        kept = [entry_with(_plain(each), wanted) for each in (spec, new_spec)]
        others = [[each for each in specs if each.name != name] for specs in (before, after)]
        found = current(new_spec, wanted)
        if kept[0] != kept[1] or others[0] != others[1] or found != dict(wanted):
            raise PerfError(_by_hand(config, "more than these keys would change", wanted))

    _replace(config, new.encode(), check)
    before_it, after_it = (each.splitlines(keepends=True) for each in (old, new))
    lines = difflib.unified_diff(before_it, after_it, str(config), str(config))
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _named(specs: list[ModelSpec], name: str, config: Path) -> ModelSpec:
    found = next((spec for spec in specs if spec.name == name), None)
    if found is None:
        raise PerfError(f"{config}: model '{name}' is gone; nothing was written")
    return found


def _with(text: str, spec: ModelSpec, key: str, value: Value) -> str:
    path: list[str | int] = [*key.split(".")]
    new: object = value
    if key == INSTANCES:
        path = ["instance_group", 0, "count"]
        if find(text, spec.name, path[:2]) is None:  # the only group, such as the defaults have it
            node = spec.places.get("instance_group")
            (group,) = (plain(node) if node else None) or [{}]
            path, new = path[:1], [{"count": value, **{k: group[k] for k in group if k != "count"}}]
    elif key == DELAY:
        is_map = isinstance(find(text, spec.name, path[:1]), yaml.MappingNode)
        if value is None:
            path, new = path[:1], False
        elif not is_map:
            path, new = path[:1], {path[1]: value}
    return set_value(text, spec.name, path, new)


def _replace(config: Path, content: bytes, check: Callable[[Path], None]) -> None:
    """Checked as a file beside it, for paths in it are relative; then it takes its place."""
    scratch = config.with_suffix(_SCRATCH_SUFFIX)
    try:
        write(str(scratch), content)
        check(scratch)
        target = config.resolve()  # of a link, what it leads to
        shutil.copymode(target, scratch)
        if target.parent == scratch.resolve().parent:
            scratch.replace(target)
        else:
            mode = target.stat().st_mode
            write(str(target), content)
            target.chmod(mode)
    except OSError as error:
        raise PerfError(f"{config}: can't be written: {error.strerror}; it is as it was") from None
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)


def _plain(spec: ModelSpec) -> dict[str, Any]:
    return {key: plain(node) for key, node in spec.places.items()}


def _by_hand(config: Path, reason: str, changes: Settings) -> str:
    return f"{config}: {reason}; nothing was written, set these yourself: {settings_text(changes)}"


class EditError(Exception):
    """The change can't be made without touching what is to stay; says where."""


def set_value(text: str, model: str, path: Sequence[str | int], value: object) -> str:
    """``text`` with ``value`` under ``path`` in the entry of ``model``; keys that are not there are
    added behind the others of their map. Raises EditError.

    Every other character stays. Works on the places that PyYAML gives to what it parses; no
    library that writes YAML anew keeps all of a file's formatting. Takes what
    generator/yaml_file/nodes.py takes: one document without aliases, merge keys and tags.
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
