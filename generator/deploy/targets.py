"""From the command line to the files of a deployment: reads models.yaml, and asks the target."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from generator.deploy import compose, kubernetes, models_file
from generator.deploy.options import Options, options_of, quantity
from generator.deploy.servers import Server, servers_of
from generator.errors import UsageError
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
    _check(asked)
    specs = load(Path(asked.config))
    if asked.target != "compose":
        models_file.refuse_local(specs, asked)
    servers = servers_of(specs, asked)
    if asked.target == "compose":
        files, steps = compose.files(servers[0]), compose.next_steps(servers[0])
    else:
        files, steps = kubernetes.files_and_steps(servers)
    return Deployment(dict(sorted(files.items())), tuple(_notes(servers)), tuple(steps))


def _notes(servers: Sequence[Server]) -> Iterator[str]:
    """Yields assumptions that may be wrong."""
    specs = [spec for server in servers for spec in server.specs]
    built = [spec.name for spec in specs if spec.python_env and not spec.python_env.folder]
    if built:
        yield (
            f"{', '.join(built)}: the Python environment is built when the container starts, "
            "unless the image has it: docker build --build-arg PYTHON_ENVS=1"
        )
    for server in servers:
        if models := ", ".join(server.unknown_weights):
            yield (
                f"{models}: without a models.lock {server.name} takes what the Hub has when it "
                f"starts, and these weights are not counted in its {quantity(server.memory_mib)} "
                "of memory: run hf-triton fetch, then deploy again; or set --memory"
            )


def _check(args: Options) -> None:
    """Raises UsageError for flags that would be ignored."""
    for flag, value, needed, given in (
        ("--tls-secret", args.tls_secret, "--host", args.host),
        ("--local-claim", args.local_claim, "--local-models", args.local_models),
    ):
        if value is not None and given is None:
            raise UsageError(f"{flag} needs {needed}")
    if args.max_replicas < args.replicas:
        raise UsageError(
            f"got --max-replicas {args.max_replicas} with --replicas {args.replicas}, expected at "
            "least as many"
        )
