"""``hf-triton schema``: prints the JSON Schema of models.yaml, for editors."""

from __future__ import annotations

import argparse
import json

from generator.models_yaml.json_schema import json_schema
from generator.spec.task_folders import find_tasks


def run(_args: argparse.Namespace) -> int:
    print(json.dumps(json_schema(find_tasks()), indent=2))
    return 0
