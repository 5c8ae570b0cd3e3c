"""From the command line to the files of a deployment: reads models.yaml, and asks the target."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from generator.deploy import compose, kubernetes
from generator.deploy.options import options_of, quantity
from generator.deploy.server import Server
from generator.models_yaml.reading import load


@dataclass(frozen=True)
class Deployment:
    """Files by their path in the folder, sorted; what there is to say, and what to do next."""

    files: Mapping[str, bytes]
    notes: tuple[str, ...]
    next_steps: tuple[str, ...]


def render(args: argparse.Namespace) -> Deployment:
    """Writes nothing. Raises SpecError for models.yaml, UsageError for flags."""
    asked = options_of(args)
    server = Server(tuple(load(Path(asked.config))), asked)
    target = compose if asked.target == "compose" else kubernetes
    files = target.files(server)
    notes, steps = _notes(server), target.next_steps(server)
    return Deployment(dict(sorted(files.items())), tuple(notes), tuple(steps))


def _notes(server: Server) -> Iterator[str]:
    """Yields assumptions that may be wrong."""
    specs = server.specs
    if built := [spec.name for spec in specs if spec.python_env and not spec.python_env.folder]:
        yield (
            f"{', '.join(built)}: the Python environment is built when the container starts, "
            "unless the image has it: docker build --build-arg PYTHON_ENVS=1"
        )
    if unknown := [spec.name for spec in specs if not spec.source.is_local and not spec.locked]:
        yield (
            f"{', '.join(unknown)}: without a models.lock {server.asked.name} takes what the Hub "
            "has when it starts, and these weights are not counted in its "
            f"{quantity(server.memory_mib)} of memory: run hf-triton fetch, then deploy again; or "
            "set --memory"
        )
