"""Puts settings into the user's models.yaml: only these keys, and only where the file then says
exactly what was measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from generator.errors import PerfError, SpecError
from generator.models_yaml.reading import load
from generator.repository.atomic_files import write
from generator.spec.model_spec import DynamicBatching, ModelSpec
from generator.spec.task_folders import Task
from perf.tune.settings import keys as settings
from perf.tune.settings.keys import BATCH, DELAY, INSTANCES, OPTIONS, settings_text
from perf.tune.settings.space import Settings
from perf.tune.settings.yaml_edit import EditError, Flow, Written, has, set_value, written

_BOM = "\ufeff"
_SCRATCH_SUFFIX = ".hf-triton-tmp"  # with the same models.lock beside it


def write_settings(
    config: Path, name: str, now: Settings, wanted: Settings, tasks: Mapping[str, Task]
) -> str:
    """Changes ``config`` in one step and returns the difference; empty where there is none.

    Raises PerfError where the file no longer says ``now``, can't be changed by these keys alone,
    or can't be written; SpecError where it has become wrong meanwhile.
    """
    changes = {key: value for key, value in wanted.items() if value != now[key]}
    before = load(config, dict(tasks))
    spec = _named(before, name, config)
    if settings.current(spec, now) != dict(now):
        raise PerfError(
            f"{config}: model '{name}' was changed since it was measured; nothing was written"
        )
    raw = config.read_bytes()
    old = raw.decode("utf-8")
    new = _edited(old, config, spec, changes)
    if new == old:
        return ""
    _replace(config, new.encode(), before, name, wanted, tasks)
    before_it, after_it = (text.splitlines(keepends=True) for text in (old, new))
    lines = difflib.unified_diff(before_it, after_it, str(config), str(config))
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _named(specs: list[ModelSpec], name: str, config: Path) -> ModelSpec:
    found = next((spec for spec in specs if spec.name == name), None)
    if found is None:
        raise PerfError(f"{config}: model '{name}' is gone; nothing was written")
    return found


def _edited(old: str, config: Path, spec: ModelSpec, changes: Settings) -> str:
    text = old.removeprefix(_BOM)
    try:
        for key, value in changes.items():
            text = _with(text, spec, key, value)
    except (EditError, yaml.YAMLError) as error:
        raise PerfError(_by_hand(config, f"{error}", changes)) from None
    return f"{_BOM}{text}" if old.startswith(_BOM) else text


def _with(text: str, spec: ModelSpec, key: str, value: Written) -> str:
    name = spec.name
    if key == INSTANCES:
        if has(text, name, ["instance_group", 0]) is not None:
            return set_value(text, name, ["instance_group", 0, "count"], value)
        return set_value(text, name, ["instance_group"], _groups(spec, value))
    if key == DELAY:
        is_map = has(text, name, ["dynamic_batching"]) is yaml.MappingNode
        if value is None:
            return set_value(text, name, ["dynamic_batching"], False)
        if not is_map:
            inside = f"{{max_queue_delay_microseconds: {value}}}"
            return set_value(text, name, ["dynamic_batching"], Flow(inside))
    return set_value(text, name, key.split("."), value)


def _groups(spec: ModelSpec, count: Written) -> Flow:
    """The only group, such as the defaults have it, with another count."""
    node = spec.places.get("instance_group")
    groups: list[dict[str, Any]] = (settings.plain(node) if node else None) or [{}]
    pairs = {"count": count, **{k: v for k, v in groups[0].items() if k != "count"}}
    inside = ", ".join(f"{key}: {_flow(value)}" for key, value in pairs.items())
    return Flow(f"[{{{inside}}}]")


def _flow(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else written(value)


def _replace(
    config: Path,
    content: bytes,
    before: list[ModelSpec],
    name: str,
    wanted: Settings,
    tasks: Mapping[str, Task],
) -> None:
    """Checked as a file beside it, for paths in it are relative; then it takes its place."""
    scratch = config.with_suffix(_SCRATCH_SUFFIX)
    try:
        write(str(scratch), content)
        _check(scratch, config, before, name, wanted, tasks)
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


def _check(
    scratch: Path,
    config: Path,
    before: list[ModelSpec],
    name: str,
    wanted: Settings,
    tasks: Mapping[str, Task],
) -> None:
    """Raises PerfError where anything but the wanted settings would change."""
    try:
        after = load(scratch, dict(tasks))
    except SpecError as error:
        problems = "; ".join(f"{each.where}: {each.message}" for each in error.problems)
        raise PerfError(_by_hand(config, problems, wanted)) from None
    same = [_neutral(spec, name, wanted) for spec in before] == [
        _neutral(spec, name, wanted) for spec in after
    ]
    found = settings.current(_named(after, name, config), wanted)
    if not same or found != dict(wanted):
        raise PerfError(_by_hand(config, "more than these keys would change", wanted))


def _neutral(spec: ModelSpec, name: str, keys: Settings) -> ModelSpec:
    """What of a model must stay."""
    if spec.name != name:
        return spec
    batching, groups = spec.dynamic_batching, spec.instance_groups
    if DELAY in keys:
        batching = dataclasses.replace(
            batching or DynamicBatching(), max_queue_delay_microseconds=0
        )
    if INSTANCES in keys:
        groups = tuple(dataclasses.replace(group, count=1) for group in groups)
    options = {k: v for k, v in spec.options.items() if f"{OPTIONS}{k}" not in keys}
    size = 0 if BATCH in keys else spec.max_batch_size
    return dataclasses.replace(
        spec,
        max_batch_size=size,
        dynamic_batching=batching,
        instance_groups=groups,
        options=options,
    )


def _by_hand(config: Path, reason: str, changes: Settings) -> str:
    return (
        f"{config}: {reason}; nothing was written, set these yourself: "
        f"{settings_text(dict(changes))}"
    )
