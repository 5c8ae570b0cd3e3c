"""``hf-triton validate``: checks models.yaml and everything generated from it; writes nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

from generator.models_yaml.reading import load
from generator.render.model_folder import render
from generator.repository.plan import track
from generator.spec.task_folders import find_tasks
from generator.spec.triton_models import triton_models


def run(args: argparse.Namespace) -> int:
    """Raises SpecError with every mistake."""
    config, repository = Path(args.config), Path(args.repository)
    tasks = find_tasks()
    specs = load(config)
    for spec in track(specs, "checking"):
        for model in triton_models(spec):
            render(model, tasks[spec.task], repository)
    num_streaming = sum(spec.streaming for spec in specs)
    streaming = f" ({num_streaming} streaming)" if num_streaming else ""
    print(f"{config}: {len(specs)} model{'s' * (len(specs) != 1)}{streaming}, no mistakes")
    return 0
