"""``hf-triton validate``: checks models.yaml and each config.pbtxt made from it; writes nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

from generator.models_yaml.reading import load
from generator.render.model_folder import render_config
from generator.spec.task_folders import find_tasks
from generator.spec.triton_models import triton_models


def run(args: argparse.Namespace) -> int:
    """Raises SpecError with every mistake."""
    config, tasks = Path(args.config), find_tasks()
    specs = load(config)
    for spec in specs:
        for model in triton_models(spec):
            render_config(model, tasks[spec.task])
    num_streaming = sum(spec.streaming for spec in specs)
    streaming = f" ({num_streaming} streaming)" if num_streaming else ""
    print(f"{config}: {len(specs)} model{'s' * (len(specs) != 1)}{streaming}, no mistakes")
    return 0
