"""Reads models.yaml: merges the defaults, checks every key, and reports all mistakes at once.
Describes the whole file as a JSON Schema too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from generator.errors import ModelError, SpecError, looks_like_token
from generator.models_yaml import models_lock
from generator.models_yaml.model_rules import (
    Branch,
    Entry,
    branches,
    broken_rules,
    merge,
    refuse_clashes,
    refuse_differences,
    refuse_targets,
)
from generator.models_yaml.server_settings import ServerSettings
from generator.spec.model_source import names_gguf
from generator.spec.model_spec import OVERRIDES, Ensemble, ModelKeys, ModelSpec
from generator.spec.task_folders import Task, find_tasks
from generator.spec.task_names import task_hint
from generator.yaml_file import keys, nodes
from generator.yaml_file.keys import Keys, key_names, listed
from generator.yaml_file.nodes import Node, Report, scalars

_REQUIRED = ("name", "task", "model")
_ONE_MODEL_ONLY = ("name", "served_names", "canary")
_EXPECTED = "a map with 'models:' and, if you like, 'defaults:' and 'server:'"
_SCHEMA = "https://json-schema.org/draft/2020-12/schema"
_MODEL_SCHEMA = "#/$defs/ModelKeys"


@dataclass(frozen=True)
class ModelsYaml(Keys):
    """The whole file, for those who describe it: it is read part by part."""

    models: Annotated[tuple[ModelKeys, ...], listed("a list with an entry for every model")] = ()
    defaults: ModelKeys | None = None
    server: ServerSettings | None = None


def load(path: Path, content: bytes | None = None) -> list[ModelSpec]:
    """The models of a models.yaml, or of one with this ``content``, pinned by the models.lock
    beside it, if any. Raises SpecError with every mistake in it, or every model that is not locked
    as it is asked for.
    """
    specs = load_unpinned(path, content)
    return models_lock.pin(specs, models_lock.read_lock(path), path)


def load_unpinned(path: Path, content: bytes | None = None) -> list[ModelSpec]:
    """The models of a models.yaml, in its order. Raises SpecError with every mistake in it."""
    root = nodes.read(path) if content is None else nodes.parse(content, str(path))
    report = Report()
    for node in scalars(root):
        if isinstance(node.value, str) and looks_like_token(node.value):
            hint = "set HF_TOKEN in the environment and leave it out here"
            report.add(node, f"got what looks like a Hugging Face token; {hint}")
    specs = _Loader(path.parent.resolve(), find_tasks(), report).models(root)
    _settings(root, report)
    if report.problems:
        raise SpecError(str(path), report.problems)
    return specs


def named(specs: Iterable[ModelSpec], name: str, config: Path) -> ModelSpec:
    """Raises ModelError, with the nearest name, where ``config`` has no model of this name."""
    known = {spec.name: spec for spec in specs}
    if name not in known:
        hint = nodes.did_you_mean(name, known, "models")
        raise ModelError(f"{config} has no model '{name}'{hint}")
    return known[name]


def load_settings(path: Path) -> ServerSettings:
    report = Report()
    settings = _settings(nodes.read(path), report)
    if report.problems:
        raise SpecError(str(path), report.problems)
    return settings


def _settings(root: Node, report: Report) -> ServerSettings:
    node = root.get("server")
    found = None if node is None else keys.read(ServerSettings, node, report)
    return found or ServerSettings()


@dataclass
class _Loader:
    """Reads the models of one file; ``base`` is the folder that relative paths start from."""

    base: Path
    tasks: Mapping[str, Task]
    report: Report
    entries: list[Entry] = field(default_factory=list)

    def models(self, root: Node) -> list[ModelSpec]:
        known = key_names(ModelsYaml)
        if not isinstance(root.value, dict):
            what_else = "a list" if isinstance(root.value, list) else "a text"
            self.report.add(root, f"got {what_else}, expected {_EXPECTED}")
            return []
        names = [key.name for key in root.value]
        if names and not any(name in known or nodes.nearest(name, known) for name in names):
            # Shows nothing of the file, which may hold secrets.
            self.report.add(root, f"got a map without any of these, expected {_EXPECTED}")
            return []
        for key in root.value:
            if key.name not in known:
                self.report.add(key, ModelsYaml.unknown(key.name, known))
        defaults, entries = root.get("defaults"), root.get("models")
        shared = None if defaults is None else self.defaults(defaults)
        if entries is None:
            self.report.add(root, "missing key 'models': the list of models to serve")
            return []
        if not isinstance(entries.value, list) or not entries.value:
            shown = "an empty list" if entries.value == [] else nodes.show(entries)
            message = f"got {shown}, expected a list with an entry for every model"
            self.report.add(entries, message)
            return []
        specs = [spec for node in entries.value for spec in self.entry(node, shared)]
        refuse_clashes(self.entries, self.report)
        refuse_differences(self.entries, self.report)
        refuse_targets(self.entries, specs, self.report)
        return specs

    def defaults(self, node: Node) -> Node | None:
        if not isinstance(node.value, dict):
            expected = "a map of keys that models share"
            self.report.add(node, f"got {nodes.show(node)}, expected {expected}")
            return None
        shared = {}
        for key, child in node.value.items():
            if key.name in _ONE_MODEL_ONLY:
                self.report.add(child, "every model has its own; it can't have a default")
            else:
                shared[key] = child
        keys.read(ModelKeys, node._replace(value=shared), self.report, self.base)
        known = {key: child for key, child in shared.items() if key.name in key_names(ModelKeys)}
        return node._replace(value=known)

    def entry(self, node: Node, defaults: Node | None) -> Iterator[ModelSpec]:
        whole = merge(defaults, node)
        spec = self.model(node, whole)
        name = whole.get("name")
        if name is None or not isinstance(name.value, str):
            return
        if spec is not None:
            yield spec
        for branch in branches(whole.get("canary")):
            if branch.arm.overrides and whole.get("task") and whole.get("model"):
                arm = self.arm(branch, whole, name.value)
                if arm is not None:
                    yield dataclasses.replace(arm, arm_of=name.value)

    def arm(self, branch: Branch, whole: Node, owner: str) -> ModelSpec | None:
        """An arm that is a version of the model ``owner``; the same mistake is told of once."""
        told = {(problem.line, problem.column) for problem in self.report.problems}
        before = len(self.report.problems)
        own = branch.entry(owner)
        arm = self.model(own, merge(branch.inherited(whole), own))
        self.report.problems[before:] = [
            problem
            for problem in self.report.problems[before:]
            if (problem.line, problem.column) not in told
        ]
        return arm

    def model(self, node: Node, whole: Node) -> ModelSpec | None:
        before = len(self.report.problems)
        found, wrong = keys.read_rest(ModelKeys, whole, self.report, self.base)
        if not isinstance(node.value, dict):
            return None
        given = whole.entries
        for name in _REQUIRED:
            if name not in given:
                self.report.add(node, f"missing key '{name}'")
        task = self.tasks.get(found.task)
        if found.task and task is None:
            hint = task_hint(found.task, self.tasks)
            hint = hint or nodes.did_you_mean(found.task, self.tasks, "tasks")
            self.report.add(given["task"], f"unknown task {nodes.show(given['task'])}{hint}")
        options = self.options(given.get("options"), task, node) if task else {}
        if "streaming" not in given or "streaming" in wrong:
            streams = task is not None and task.streams
            object.__setattr__(found, "streaming", streams)  # a tenth of what `replace` takes
        entry = Entry(given, node, found, wrong, task, options)
        self.entries.append(entry)
        for place, message in broken_rules(entry):
            self.refuse(place, message, node)
        if len(self.report.problems) > before:
            return None
        return _spec(found, options, given)

    def options(self, node: Node | None, task: Task, model: Node) -> dict[str, object]:
        given: dict[str, Any] = {}
        if node is not None:
            found = keys.read(task.option_keys, node, self.report)
            if found is None:
                return {}
            given = {name: getattr(found, name) for name in node.entries}
        options = task.options_class(**given)
        for name, message in getattr(options, "problems", list)():
            place = node.get(name) if node is not None else None
            self.refuse(place or model, message if place else f"options.{name}: {message}", model)
        return dict(vars(options))

    def refuse(self, place: Node, message: str, model: Node) -> None:
        """Notes a problem of one model, which it names where the value comes from the defaults."""
        inherited = not place.where.startswith(model.where)
        self.report.add(place, f"{message} (in {model.where})" if inherited else message)


def _spec(found: ModelKeys, options: Mapping[str, object], places: Mapping[str, Node]) -> ModelSpec:
    source, is_ensemble = found.model, found.layout == "ensemble"
    is_file = source.folder is not None and names_gguf(source.text)
    values = {
        **vars(found),
        "options": options,
        "ensemble": (found.ensemble or Ensemble()) if is_ensemble else None,
        "gguf_file": source.folder.name if source.folder and is_file else found.gguf_file,
    }
    return ModelSpec(**values, places=places)


def json_schema() -> dict[str, Any]:
    """models.yaml as a JSON Schema for editors."""
    tasks = find_tasks()
    found = keys.json_schema(ModelsYaml)
    kinds = found["$defs"]
    kinds["ModelKeys"]["properties"]["task"]["enum"] = [*tasks]
    for name in OVERRIDES:
        kinds["Arm"]["properties"][name] = {"$ref": f"{_MODEL_SCHEMA}/properties/{name}"}
    # Other required keys may stand in the defaults.
    rules: list[dict[str, Any]] = [{"$ref": _MODEL_SCHEMA}, {"required": ["name"]}]
    for tag, task in tasks.items():
        is_of_task = {"properties": {"task": {"const": tag}}, "required": ["task"]}
        kinds[tag] = keys.json_schema(task.option_keys)
        options = {"properties": {"options": {"$ref": f"#/$defs/{tag}"}}}
        rules.append({"if": is_of_task, "then": options})
    found["properties"]["models"]["items"] = {"allOf": rules}
    return {"$schema": _SCHEMA, **found, "title": "models.yaml", "required": ["models"]}
