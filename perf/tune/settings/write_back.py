"""Puts settings into the user's models.yaml: only these keys, and only where the file then says
exactly what was measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from generator.errors import PerfError, SpecError
from generator.models_yaml.reading import load
from generator.repository.atomic_files import write
from generator.spec.model_spec import DynamicBatching, ModelSpec
from generator.spec.task_folders import Task
from perf.report.schema import Value
from perf.tune.settings import keys as settings
from perf.tune.settings.keys import BATCH, DELAY, INSTANCES, OPTIONS, settings_text
from perf.tune.settings.space import Settings
from perf.tune.settings.yaml_edit import EditError, find, set_value

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
    if settings.current(spec, now) != dict(now):
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
        kept = ([_neutral(each, name, wanted) for each in specs] for specs in (before, after))
        found = settings.current(_named(after, name, config), wanted)
        if next(kept) != next(kept) or found != dict(wanted):
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
            (group,) = (settings.plain(node) if node else None) or [{}]
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
    return dataclasses.replace(
        spec,
        max_batch_size=0 if BATCH in keys else spec.max_batch_size,
        dynamic_batching=batching,
        instance_groups=groups,
        options={k: v for k, v in spec.options.items() if f"{OPTIONS}{k}" not in keys},
    )


def _by_hand(config: Path, reason: str, changes: Settings) -> str:
    return f"{config}: {reason}; nothing was written, set these yourself: {settings_text(changes)}"
