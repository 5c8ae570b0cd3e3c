"""Reads models.yaml: merges the defaults, checks every key, and reports all mistakes at once.

Knows tasks only by their tags and options, nothing of templates, output or servers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from generator.errors import SpecError, looks_like_token
from generator.models_yaml import model_rules, models_lock, vllm_backend_rules
from generator.models_yaml.features import (
    adapter_keys,
    canary_keys,
    ensemble_keys,
    gguf_keys,
    metric_keys,
    quantization_keys,
)
from generator.models_yaml.features.canary_keys import Branch, Target, refuse_targets
from generator.models_yaml.features.entry import Entry
from generator.models_yaml.features.hooks_file import find_hooks
from generator.models_yaml.features.python_env_keys import find_python_env
from generator.models_yaml.model_keys import GONE, KEYS, merge, task_hint
from generator.models_yaml.model_names import NameClaim, refuse_clashes
from generator.models_yaml.server_settings import ServerSettings, read_settings
from generator.spec.model_source import Source, find_source
from generator.spec.model_spec import HooksFile, InstanceGroup, ModelSpec, PythonEnv
from generator.spec.task_folders import Task
from generator.spec.triton_models import ENGINE_SUFFIX, STEP_SUFFIXES
from generator.spec.vllm_arguments import num_gpus
from generator.yaml_file import nodes as yaml_nodes
from generator.yaml_file import reading, schema
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Report

_TOP = ("models", "defaults", "server")
_RULES = (
    model_rules.broken_rules,
    adapter_keys.broken_rules,
    model_rules.engine_rules,
    model_rules.vllm_rules,
    ensemble_keys.broken_rules,
    vllm_backend_rules.broken_rules,
    quantization_keys.broken_rules,
    gguf_keys.broken_rules,
)
_ONE_MODEL_ONLY = ("name", "served_names", "canary")


def load(path: Path, tasks: Mapping[str, Task]) -> list[ModelSpec]:
    """The models of a models.yaml, in its order, pinned by the models.lock beside it, if any.

    Raises:
        SpecError: with every mistake in it, or every model that is not locked as it is asked for.
    """
    return models_lock.pin(load_unpinned(path, tasks), models_lock.read_lock(path), path)


def load_unpinned(path: Path, tasks: Mapping[str, Task]) -> list[ModelSpec]:
    """The models of a models.yaml, in its order. Raises SpecError with every mistake in it."""
    root = reading.read(path)
    report = Report()
    for node in yaml_nodes.scalars(root):
        if isinstance(node.value, str) and looks_like_token(node.value):
            hint = "set HF_TOKEN in the environment and leave it out here"
            report.add(node, f"got what looks like a Hugging Face token; {hint}")
    specs = _Loader(path.parent.resolve(), tasks, report).models(root)
    read_settings(root.get("server"), report)
    if report.problems:
        raise SpecError(str(path), report.problems)
    return specs


def load_settings(path: Path) -> ServerSettings:
    """What a models.yaml says of the whole server. Raises SpecError for mistakes in that."""
    report = Report()
    settings = read_settings(reading.read(path).get("server"), report)
    if report.problems:
        raise SpecError(str(path), report.problems)
    return settings


def _is_something_else(root: Node) -> str:
    """What a file is that is no models.yaml at all, "" for one. Nothing of it is shown: it may be
    a file of secrets.
    """
    if not isinstance(root.value, dict):
        return "a list" if isinstance(root.value, list) else "a text"
    names = [key.name for key in root.value]
    is_ours = not names or any(name in _TOP or schema.nearest(name, _TOP) for name in names)
    return "" if is_ours else "a map without any of these"


@dataclass
class _Loader:
    """Reads the models of one file; ``base`` is the folder that relative paths start from."""

    base: Path
    tasks: Mapping[str, Task]
    report: Report
    claims: list[NameClaim] = field(default_factory=list)
    aliases: list[NameClaim] = field(default_factory=list)
    metrics: list[metric_keys.MetricClaim] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)

    def models(self, root: Node) -> list[ModelSpec]:
        expected = "a map with 'models:' and, if you like, 'defaults:' and 'server:'"
        what_else = _is_something_else(root)
        if what_else:
            self.report.add(root, f"got {what_else}, expected {expected}")
            return []
        top = schema.keys_of(root, _TOP, self.report, expected)
        defaults = self.defaults(top["defaults"]) if "defaults" in top else {}
        entries = top.get("models")
        if entries is None:
            if isinstance(root.value, dict):
                self.report.add(root, "missing key 'models': the list of models to serve")
            return []
        if not isinstance(entries.value, list) or not entries.value:
            shown = "an empty list" if entries.value == [] else schema.show(entries)
            message = f"got {shown}, expected a list with an entry for every model"
            self.report.add(entries, message)
            return []
        specs = [spec for node in entries.value for spec in self.entry(node, defaults)]
        refuse_clashes([*self.claims, *self.aliases], self.report)
        metric_keys.refuse_differences(self.metrics, self.report)
        names = [claim.name for claim in self.claims]
        refuse_targets(self.targets, names, specs, self.report)
        return specs

    def defaults(self, node: Node) -> dict[str, Node]:
        """The defaults' nodes; their values are checked here too, for a model may override each."""
        expected = "a map of keys that models share"
        entries = schema.keys_of(node, KEYS, self.report, expected, GONE)
        for name, child in entries.items():
            if name in _ONE_MODEL_ONLY:
                self.report.add(child, "every model has its own; it can't have a default")
            elif name == "options" and not isinstance(child.value, dict):
                self.report.expected(child, "a map of options")
            else:
                KEYS[name].check(child, self.report)
        return {name: node for name, node in entries.items() if name != "canary"}

    def entry(self, node: Node, defaults: Mapping[str, Node]) -> Iterator[ModelSpec]:
        """A model, and the arms of it that are generated as models of their own."""
        before = len(self.report.problems)
        spec = self.model(node, defaults)
        own = node.value.items() if isinstance(node.value, dict) else ()
        given = merge(defaults, {key.name: child for key, child in own})
        name = given.get("name")
        routes = canary_keys.read(given, KEYS, self.report)
        if name is None or not isinstance(name.value, str):
            return
        self.targets += [
            Target(arm.to, name.value) for arm in routes.branches if arm.to is not None
        ]
        if spec is not None and len(self.report.problems) == before:
            yield dataclasses.replace(spec, canary=routes.canary(spec.name))
        if "task" not in given or "model" not in given:
            return  # told of already
        for branch in routes.branches:
            arm = self.arm(branch, given, name.value) if branch.overrides else None
            if arm is not None:
                yield dataclasses.replace(arm, arm_of=name.value)

    def arm(self, branch: Branch, given: Mapping[str, Node], owner: str) -> ModelSpec | None:
        """An arm that is a version of the model ``owner``; the same mistake is told of once."""
        told = {(problem.line, problem.column) for problem in self.report.problems}
        before = len(self.report.problems)
        arm = self.model(branch.entry(owner), branch.inherited(given))
        self.report.problems[before:] = [
            problem
            for problem in self.report.problems[before:]
            if (problem.line, problem.column) not in told
        ]
        return arm

    def model(self, node: Node, defaults: Mapping[str, Node]) -> ModelSpec | None:
        before = len(self.report.problems)
        expected = "a map with name, task and model"
        own = schema.keys_of(node, KEYS, self.report, expected, GONE)
        if not isinstance(node.value, dict):
            return None
        given = merge(defaults, own)
        values: dict[str, Any] = {}
        for name, key in KEYS.items():
            child = given.get(name)
            if child is not None:
                values[name] = key.check(child, self.report)
            elif key.required:
                self.report.add(node, f"missing key '{name}'")
            else:
                values[name] = key.default
        task = self.task(given, values)
        options = self.options(given.get("options"), task, node) if task else {}
        source = self.source(given, values)
        kind = "" if source is None else source.without_revisions
        if kind and values.get("revision") is not None:
            message = f"only a model on the Hub has revisions, and 'model' is {kind}"
            self.refuse(given["revision"], message, node)
        if source is not None and source.is_local and values.get("gguf_file") is not None:
            self.refuse(given["gguf_file"], "of a local folder say model: FOLDER/FILE.gguf", node)
        values["streaming"] = self.streaming(given, values, task, node)
        named = own.get("name")
        if named is not None and isinstance(named.value, str):
            self.claims.append(NameClaim(named, named.value, folder_suffixes(values)))
        values["served_names"] = values["served_names"] or ()
        if isinstance(others := own.get("served_names"), Node) and isinstance(others.value, list):
            self.aliases += [
                NameClaim(one, one.value) for one in others.value if isinstance(one.value, str)
            ]
        values["hooks"] = self.hooks(given, values)
        adapters = values["adapters"] or ()
        values["adapters"] = adapter_keys.find_adapters(adapters, self.base, self.report)
        values["adapters_from"] = adapter_keys.find_sources(given, values, self.base, self.report)
        values["python_env"] = self.python_env(given)
        if values["metrics"]:
            self.metrics += metric_keys.claims(given["metrics"], values["metrics"])
        if values.get("layout") in ("single", "vllm-backend") and "ensemble" in own:
            self.report.add(own["ensemble"], "is of no use without 'layout: ensemble'")
        entry = Entry(given, values, task, options, node.get("options"), self.tasks)
        for place, message in (found for rules in _RULES for found in rules(entry)):
            self.refuse(place, message, node)
        if len(self.report.problems) > before or task is None or source is None:
            return None
        return _spec(values, source, options, given)

    def task(self, given: Mapping[str, Node], values: Mapping[str, Any]) -> Task | None:
        tag = values.get("task")
        if tag is None:
            return None
        if tag not in self.tasks:
            node = given["task"]
            hint = task_hint(tag, self.tasks) or schema.did_you_mean(tag, self.tasks, "tasks")
            self.report.add(node, f"unknown task {schema.show(node)}{hint}")
        return self.tasks.get(tag)

    def options(self, node: Node | None, task: Task, model: Node) -> dict[str, object]:
        """The task's options, defaults filled in."""
        given: dict[str, object] = {}
        nodes: dict[str, Node] = {}
        before = len(self.report.problems)
        if node is not None:
            nodes = schema.keys_of(node, task.options, self.report, "a map of options")
            given = {
                name: task.options[name].check(child, self.report) for name, child in nodes.items()
            }
        if len(self.report.problems) > before:
            return {}
        options = task.options_class(**given)
        for name, message in getattr(options, "problems", list)():
            place = nodes.get(name)
            self.refuse(place or model, message if place else f"options.{name}: {message}", model)
        return {name: getattr(options, name) for name in task.options}

    def streaming(
        self,
        given: Mapping[str, Node],
        values: Mapping[str, Any],
        task: Task | None,
        model: Node,
    ) -> bool:
        """Whether the model streams: as it says, else as its task can."""
        wanted: bool | None = values.get("streaming")
        if task is None:
            return bool(wanted)
        if wanted and not task.streams:
            message = f"got true, expected false: {task.tag} answers a request at once, in whole"
            self.refuse(given["streaming"], message, model)
            return False
        return task.streams if wanted is None else wanted

    def source(self, given: Mapping[str, Node], values: Mapping[str, Any]) -> Source | None:
        value, node = values.get("model"), given.get("model")
        if value is None or node is None:
            return None
        if gguf_keys.is_file(value):
            return gguf_keys.find_file(node, value, self.base, self.report)
        return find_source(node, value, self.base, self.report)

    def hooks(self, given: Mapping[str, Node], values: Mapping[str, Any]) -> HooksFile | None:
        value, node = values.get("hooks"), given.get("hooks")
        if value is None or node is None:
            return None
        return find_hooks(node, value, self.base, self.report)

    def python_env(self, given: Mapping[str, Node]) -> PythonEnv | None:
        node = given.get("python_env")
        return None if node is None else find_python_env(node, self.base, self.report)

    def refuse(self, place: Node, message: str, model: Node) -> None:
        """Notes a problem of one model, which it names where the value comes from the defaults."""
        inherited = not place.where.startswith(model.where)
        self.report.add(place, f"{message} (in {model.where})" if inherited else message)


def folder_suffixes(values: Mapping[str, Any]) -> tuple[str, ...]:
    """What a model's name is followed by in the names of its further folders."""
    if values.get("layout") == "ensemble":
        return STEP_SUFFIXES
    if values.get("layout") == "vllm-backend":
        return ()
    return (ENGINE_SUFFIX,) if values["streaming"] else ()


def _spec(
    values: Mapping[str, Any],
    source: Source,
    options: Mapping[str, object],
    places: Mapping[str, Node],
) -> ModelSpec:
    groups = values["instance_group"]
    if groups is None:
        # Where a device map spreads one copy over the GPUs, Triton must not make one on each.
        on_vllm = values["layout"] == "vllm-backend" or num_gpus(options) > 1
        kind = "KIND_MODEL" if values["device_map"] or on_vllm else "KIND_AUTO"
        groups = (InstanceGroup(kind=kind),)
    if values["layout"] != "ensemble":
        values = {**values, "ensemble": None}
    kept = ("model", "instance_group", "options", "canary")
    direct = {name: value for name, value in values.items() if name not in kept}
    if source.folder is not None and gguf_keys.is_file(source.text):
        direct["gguf_file"] = source.folder.name
    return ModelSpec(
        source=source, instance_groups=groups, options=options, places=places, **direct
    )
