"""A real Prometheus scrapes a real server: every query of the dashboard has an answer."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml

from generator.deploy.rendering import dashboard, rules
from hf_triton.tritonserver.listen import Listen
from tests.support.http_server import Handler, serving_http
from tests.support.prometheus import Prometheus, program, running
from tests.support.served import started
from tests.support.triton import ROOT, eventually, free_ports, post
from tests.unit.deploy.workspace import read_yaml

MODELS = f"""\
models:
  - {{name: text, task: text-generation, model: {ROOT}/demo/model}}
  - name: embedding
    task: feature-extraction
    model: {ROOT}/demo/embedding
    canary: {{arms: [{{name: stable, weight: 50}}, {{name: new, weight: 50, to: other}}]}}
  - {{name: other, task: feature-extraction, model: {ROOT}/demo/embedding}}
  - {{name: rare, task: fill-mask, model: {ROOT}/demo/mask, load: on_demand, idle_s: 1}}
"""
# Metrics of a machine with a GPU, as Triton names them.
GPU_METRICS = """\
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 100
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 50
nv_gpu_power_usage{gpu_uuid="GPU-1"} 300
"""
PANELS = [panel for panel in json.loads(dashboard())["panels"] if "targets" in panel]
DATA_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Watched:
    """A server under load, and the Prometheus that scrapes it."""

    listen: Listen
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    program("prometheus")  # or all is skipped before a server is started
    folder = tmp_path_factory.mktemp("watched")
    listen, other = free_ports(), free_ports()
    with contextlib.ExitStack() as stack:
        (folder / "models.yaml").write_text(MODELS)
        serving = started(folder, ("hf_triton.cli",), (), listen, {"OMP_NUM_THREADS": "1"})
        stack.enter_context(serving).wait_for("hf-triton: serving ")
        stack.enter_context(gpu_exporter(other.http_port))
        stack.enter_context(requests(listen))
        targets = [listen.metrics_port, listen.health_port, other.http_port]
        config = write_config(folder, targets)
        yield Watched(listen, stack.enter_context(running(config, other.grpc_port)))


@contextlib.contextmanager
def gpu_exporter(port: int) -> Iterator[None]:
    """Stands for the part of Triton's metrics that needs a GPU."""

    class Metrics(Handler, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, GPU_METRICS.encode(), Content_Type="text/plain; version=0.0.4")

    with serving_http(Metrics, port):
        yield


@contextlib.contextmanager
def requests(listen: Listen) -> Iterator[None]:
    """A little load until the block ends: of each way to ask, and of what is refused."""
    url = f"http://127.0.0.1:{listen.http_port}/v2/models"
    stop = threading.Event()

    def ask() -> None:
        num_asked = 0
        while not stop.wait(0.2):
            num_asked += 1
            with contextlib.suppress(OSError):
                if num_asked % 20 == 0:  # it has gone meanwhile
                    post(f"{url}/rare/generate", {"text_input": "I [MASK] going"})
                post(f"{url}/text/generate", {"text_input": "I am going", "max_tokens": 8})
                post(f"{url}/text_stream/generate_stream", {"text_input": "I am", "max_tokens": 8})
                post(f"{url}/embedding/generate", {"text_input": "I am going"})

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def write_config(folder: Path, ports: list[int]) -> Path:
    """Writes Compose's configuration of Prometheus, with other addresses, scraping each second."""
    text = ROOT / "generator/deploy/templates/prometheus-compose.yaml.j2"
    config = read_yaml(text.read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
    (folder / "rules.yaml").write_bytes(rules())
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    return folder / "prometheus.yaml"


def filled_in(expression: str) -> str:
    """As Grafana sends it where all models are chosen."""
    found = expression.replace("$__rate_interval", "20s").replace("$model", ".*")
    assert "$" not in found
    return found


def test_everything_is_scraped(watched: Watched) -> None:
    def ups() -> list[Any]:
        return [sample["value"][1] for sample in watched.prometheus.query("up")]

    assert eventually(lambda: ups() == ["1", "1", "1"], DATA_TIMEOUT_S), ups()


def test_every_query_of_the_dashboard_has_data(watched: Watched) -> None:
    queries = {
        f"{panel['title']} ({target['refId']})": filled_in(target["expr"])
        for panel in PANELS
        for target in panel["targets"]
    }
    assert len(queries) > 40

    def empty() -> dict[str, str]:
        return {
            title: query
            for title, query in queries.items()
            if not answers(watched.prometheus, query)
        }

    eventually(lambda: not empty(), DATA_TIMEOUT_S)
    assert empty() == {}


def answers(prometheus: Prometheus, query: str) -> bool:
    return has_numbers(prometheus.query(query))


def has_numbers(samples: list[Any]) -> bool:
    """A quantile of nothing is NaN, which Grafana shows as no data."""
    return any(sample["value"][1] != "NaN" for sample in samples)


def test_models_can_be_chosen(watched: Watched) -> None:
    variable = next(
        entry for entry in json.loads(dashboard())["templating"]["list"] if entry["name"] == "model"
    )
    selector = variable["query"]["query"].removeprefix("label_values(").removesuffix(", model)")

    def names() -> set[str]:
        found = watched.prometheus.query(f"group by (model) ({selector})")
        return {sample["metric"]["model"] for sample in found}

    assert eventually(lambda: names() == {"text", "embedding", "other", "rare"}, DATA_TIMEOUT_S), (
        names()
    )


def test_no_alert_fires_and_each_can_be_evaluated(watched: Watched) -> None:
    def states() -> dict[str, tuple[str, str]]:
        groups = watched.prometheus.ask("rules")["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        return {rule["name"]: (rule["health"], rule["state"]) for rule in found}

    machine = {"HfTritonMemoryNearlyFull"}  # is not ours to promise here

    def is_quiet() -> bool:
        found = states()
        return bool(found) and all(
            health == "ok" and (state == "inactive" or name in machine)
            for name, (health, state) in found.items()
        )

    assert eventually(is_quiet, DATA_TIMEOUT_S), states()


def test_what_the_autoscaler_asks_for_has_numbers(watched: Watched) -> None:
    text = (ROOT / "generator/deploy/templates/autoscaler.yaml.j2").read_text()
    for name in re.findall("name: (hf_triton_.*)", text):
        query = f'sum({name}{{job="hf-triton"}}) by (instance)'
        has_data = functools.partial(answers, watched.prometheus, query)
        assert eventually(has_data, DATA_TIMEOUT_S), query
