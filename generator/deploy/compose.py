"""Docker Compose: Triton, Prometheus and Grafana on one machine, around the user's own models.yaml.

That file, its lock, hooks and local models are mounted where they are on this machine, seen from
each other. Knows paths; knows nothing of clusters.
"""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Iterator
from pathlib import Path

from generator.deploy.rendering import dashboard, render, rules
from generator.deploy.server import Server, written_files
from generator.models_yaml import models_lock
from generator.models_yaml.server_settings import bracketed

_FOLDER = "/srv/hf-triton/config"  # stands for the folder of models.yaml
_HOME = "/tmp"  # noqa: S108, in the container, and its own


def files(server: Server) -> dict[str, bytes]:
    """Everything that `docker compose` reads."""
    output, address = Path(server.asked.output), bracketed(server.asked.listen)
    mounted = {_container_path(written): path for path, written in _mounted(server)}
    binds = [(_relative_to(output, path), target) for target, path in sorted(mounted.items())]
    provisioning = "grafana/provisioning"
    return {
        "compose.yaml": render("compose.yaml.j2", server, binds=binds, address=address),
        "prometheus/prometheus.yaml": render("prometheus-compose.yaml.j2", server),
        "prometheus/rules.yaml": rules(),
        "grafana/dashboards/hf-triton.json": dashboard(),
        f"{provisioning}/datasources/hf-triton.yaml": render("grafana-datasource.yaml.j2", server),
        f"{provisioning}/dashboards/hf-triton.yaml": render("grafana-dashboards.yaml.j2", server),
    }


def next_steps(server: Server) -> list[str]:
    # In the folder, where Compose finds a compose.override.yaml of the user's too.
    up = "docker compose up -d   # Grafana: port 3000, user admin"
    build = f"docker build --target {server.device} -t {server.image} ."
    return [
        *([] if server.asked.image else [build]),
        'export GRAFANA_ADMIN_PASSWORD="$(openssl rand -hex 16)"; echo "$GRAFANA_ADMIN_PASSWORD"',
        f"cd {shlex.quote(server.asked.output)} && {up}",
    ]


def _mounted(server: Server) -> Iterator[tuple[Path, str]]:
    """Each file and folder that the server reads, and its path as models.yaml writes it."""
    config = Path(server.asked.config)
    yield config, "models.yaml"
    if (lock := models_lock.lock_path(config)).exists():
        yield lock, "models.lock"
    for spec in server.specs:
        for place, folder in spec.local_folders:
            yield folder, str(place.value)
        if spec.hooks is not None:
            yield spec.hooks.path, str(spec.places["hooks"].value)
        if spec.python_env is not None and spec.python_env.folder is not None:
            yield spec.python_env.folder, spec.python_env.written
        written = [Path(str(node.value)).expanduser() for node in written_files(spec)]
        is_absolute = any(path.is_absolute() for path in written)
        for file in spec.python_env.files if spec.python_env else ():
            yield file, str(file) if is_absolute else os.path.relpath(file, config.resolve().parent)


def _container_path(written: str) -> str:
    """The path at which the container looks for a path of models.yaml."""
    if written.startswith("~"):  # the server's user has no home but this
        return posixpath.normpath(f"{_HOME}/{written.partition('/')[2]}")
    return posixpath.normpath(posixpath.join(_FOLDER, written))


def _relative_to(output: Path, path: Path) -> str:
    """Relative, so that the files are the same in every checkout; with a dot, as Compose wants."""
    relative = Path(os.path.relpath(path.absolute(), output.absolute())).as_posix()
    return relative if relative.startswith("..") else f"./{relative}"
