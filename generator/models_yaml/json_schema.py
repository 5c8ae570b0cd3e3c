"""models.yaml as a JSON Schema for editors."""

from __future__ import annotations

from typing import Any

from generator.models_yaml.reading import ModelsYaml
from generator.spec.model_spec import OVERRIDES
from generator.spec.task_folders import find_tasks
from generator.yaml_file import keys

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_MODEL = "#/$defs/ModelKeys"


def json_schema() -> dict[str, Any]:
    tasks = find_tasks()
    found = keys.json_schema(ModelsYaml)
    kinds = found["$defs"]
    kinds["ModelKeys"]["properties"]["task"]["enum"] = [*tasks]
    for name in OVERRIDES:
        kinds["Arm"]["properties"][name] = {"$ref": f"{_MODEL}/properties/{name}"}
    # Other required keys may stand in the defaults.
    rules: list[dict[str, Any]] = [{"$ref": _MODEL}, {"required": ["name"]}]
    for tag, task in tasks.items():
        is_of_task = {"properties": {"task": {"const": tag}}, "required": ["task"]}
        kinds[tag] = keys.json_schema(task.option_keys)
        options = {"properties": {"options": {"$ref": f"#/$defs/{tag}"}}}
        rules.append({"if": is_of_task, "then": options})
    found["properties"]["models"]["items"] = {"allOf": rules}
    return {"$schema": _DIALECT, **found, "title": "models.yaml", "required": ["models"]}
