"""``hf-triton validate``: checks models.yaml and everything generated from it; writes nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

from generator.errors import SpecError
from generator.models_yaml.reading import load
from generator.render.model_folder import render
from generator.repository.plan import track
from generator.spec import local_files
from generator.spec.task_folders import find_tasks
from generator.spec.triton_models import triton_models
from generator.yaml_file.schema import Report


def run(args: argparse.Namespace) -> int:
    """Raises SpecError with every mistake."""
    config, repository = Path(args.config), Path(args.repository)
    tasks = find_tasks()
    specs = load(config)
    report = Report()
    for part in (part for spec in specs for part in spec.parts):
        if lack := local_files.missing_file(part):
            report.add(part.places["model"], f"{part.source.folder} {lack}")
    if report.problems:
        raise SpecError(str(config), report.problems)
    for spec in track(specs, "checking"):
        for model in triton_models(spec):
            render(model, tasks[spec.task], repository)
    num_streaming = sum(spec.streaming for spec in specs)
    streaming = f" ({num_streaming} streaming)" if num_streaming else ""
    print(f"{config}: {len(specs)} model{'s' * (len(specs) != 1)}{streaming}, no mistakes")
    return 0
