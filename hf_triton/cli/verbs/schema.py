"""``hf-triton schema``: prints the JSON Schema of models.yaml, for editors."""

from __future__ import annotations

import argparse
import json

from generator.models_yaml.reading import json_schema


def run(_args: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2))
    return 0
