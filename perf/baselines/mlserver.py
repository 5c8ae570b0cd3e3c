"""MLServer with its Hugging Face runtime on one model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from generator.server_listen import Listen
from perf.baselines.environments import Environment
from perf.baselines.processes import running, wait_ready

MAX_BATCH_SIZE, MAX_BATCH_TIME_S = 32, 0.02  # of its adaptive batching


@dataclass(frozen=True)
class HuggingFaceModel:
    """What is served: its name, its task, and where it lies."""

    name: str
    task: str
    folder: Path


@contextmanager
def mlserver(
    environment: Environment, model: HuggingFaceModel, listen: Listen, log: Path
) -> Iterator[Popen[bytes]]:
    """MLServer with its settings in a folder beside its log. Raises ``PeerError``."""
    settings = log.with_suffix(".settings")
    settings.mkdir(exist_ok=True)
    ports = {
        "http_port": listen.http_port,
        "grpc_port": listen.grpc_port,
        "metrics_port": listen.metrics_port,
    }
    write_json(settings / "settings.json", {"host": listen.host, "debug": False, **ports})
    write_json(settings / "model-settings.json", model_settings(model))
    command = [environment.program("mlserver"), "start", str(settings)]
    with running(command, {}, log) as process:
        url = f"http://{listen.host}:{listen.http_port}/v2/models/{model.name}/ready"
        wait_ready(process, url, log)
        yield process


def model_settings(model: HuggingFaceModel) -> dict[str, object]:
    """One model with adaptive batching."""
    extra = {
        "task": model.task,
        "pretrained_model": str(model.folder),
        "framework": "pt",
        "device": -1,
    }
    return {
        "name": model.name,
        "implementation": "mlserver_huggingface.HuggingFaceRuntime",
        "max_batch_size": MAX_BATCH_SIZE,
        "max_batch_time": MAX_BATCH_TIME_S,
        "parameters": {"extra": extra},
    }


def write_json(file: Path, content: object) -> None:
    """Writes settings as MLServer reads them."""
    file.write_text(json.dumps(content, indent=2), encoding="utf-8")
