"""Docker Compose: Triton, Prometheus and Grafana on one machine, around the user's own models.yaml.

That file, its lock, hooks and local models are mounted where they are on this machine, seen from
each other. Knows paths; knows nothing of clusters.
"""

from __future__ import annotations

import functools
import os
import posixpath
import shlex
from collections.abc import Iterator
from pathlib import Path

from markupsafe import Markup

from generator.deploy import monitoring
from generator.deploy.models_file import written_files
from generator.deploy.rendering import quote, render
from generator.deploy.servers import Server
from generator.models_yaml import models_lock
from generator.spec.access import bracketed
from generator.spec.model_spec import ModelSpec

_FOLDER = "/srv/hf-triton/config"  # stands for the folder of models.yaml
_HOME = "/tmp"  # noqa: S108, in the container, and its own
_PORTS = (("HTTP_PORT", 8000), ("GRPC_PORT", 8001), ("METRICS_PORT", 8002), ("HEALTH_PORT", 8003))


def files(server: Server) -> dict[str, bytes]:
    """Everything that `docker compose` reads."""
    binds = sorted(set(_binds(server)), key=lambda bind: bind[1])
    asked = server.asked
    port = functools.partial(_port, asked.listen)
    openai = (("OPENAI_PORT", 9000),) if asked.openai else ()
    ports = {
        "triton": [port(*one) for one in (*_PORTS, *openai)],
        "prometheus": port("PROMETHEUS_PORT", 9090),
        "grafana": port("GRAFANA_PORT", 3000),
    }
    rendered = {
        "compose.yaml": render("compose.yaml.j2", server=server, s=asked, binds=binds, ports=ports),
        "prometheus/prometheus.yaml": render("prometheus-compose.yaml.j2"),
        "prometheus/rules.yaml": monitoring.rules(),
        "grafana/dashboards/hf-triton.json": monitoring.dashboard(),
    }
    for kind in ("datasource", "dashboards"):
        folder = "datasources" if kind == "datasource" else kind
        rendered[f"grafana/provisioning/{folder}/hf-triton.yaml"] = render(
            f"grafana-{kind}.yaml.j2"
        )
    return rendered


def next_steps(server: Server) -> list[str]:
    target = "gpu" if server.gpus else "cpu"
    # In the folder, where Compose finds a compose.override.yaml of the user's too.
    up = "docker compose up -d   # Grafana: port 3000, user admin"
    build = [] if server.asked.image else [f"docker build --target {target} -t {server.image} ."]
    return [
        *build,
        'export GRAFANA_ADMIN_PASSWORD="$(openssl rand -hex 16)"; echo "$GRAFANA_ADMIN_PASSWORD"',
        f"cd {shlex.quote(server.asked.output)} && {up}",
    ]


def _port(address: str, variable: str, port: int) -> Markup:
    return quote(f"{bracketed(address)}:${{{variable}:-{port}}}:{port}")


def _binds(server: Server) -> Iterator[tuple[str, str]]:
    """(from the Compose file's folder, in the container) of each file and folder."""
    config, output = Path(server.asked.config), Path(server.asked.output)
    yield _relative_to(output, config), f"{_FOLDER}/models.yaml"
    lock = models_lock.lock_path(config)
    if lock.exists():
        yield _relative_to(output, lock), f"{_FOLDER}/models.lock"
    for spec in server.specs:
        for place, folder in spec.local_folders:
            yield _relative_to(output, folder), _container_path(str(place.value))
        if spec.hooks is not None:
            written = str(spec.places["hooks"].value)
            yield _relative_to(output, spec.hooks.path), _container_path(written)
        yield from _environment_binds(spec, config, output)


def _environment_binds(spec: ModelSpec, config: Path, output: Path) -> Iterator[tuple[str, str]]:
    """The requirements of a model's own environment, or the folder of one that is there."""
    env = spec.python_env
    if env is None:
        return
    if env.folder is not None:
        yield _relative_to(output, env.folder), _container_path(env.written)
    for file in env.files:
        written = os.path.relpath(file, config.resolve().parent)
        if any(Path(str(node.value)).expanduser().is_absolute() for node in written_files(spec)):
            written = str(file)
        yield _relative_to(output, file), _container_path(written)


def _container_path(written: str) -> str:
    """Where the container looks for a path of models.yaml."""
    if written.startswith("~"):  # the server's user has no home but this
        return posixpath.normpath(f"{_HOME}/{written.partition('/')[2]}")
    path = posixpath.normpath(posixpath.join(_FOLDER, written))
    return path if path.startswith("/") else f"{_FOLDER}/{path}"


def _relative_to(output: Path, path: Path) -> str:
    """Relative, so that the files are the same in every checkout; with a dot, as Compose wants."""
    relative = Path(os.path.relpath(path.absolute(), output.absolute())).as_posix()
    return relative if relative.startswith("..") else f"./{relative}"
