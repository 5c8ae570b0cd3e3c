"""Alert rules and scrape configurations, by promtool; the dashboard, as Grafana reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from generator.deploy.rendering import dashboard, rules
from tests.support.prometheus import promtool
from tests.unit.deploy.conftest import Deploy
from tests.unit.deploy.workspace import read_yaml

RULES = {
    rule["alert"]: rule
    for group in read_yaml(rules().decode())["groups"]
    for rule in group["rules"]
}


@dataclass(frozen=True)
class Case:
    """Series that make an alert fire at ``at``, and not yet at ``quiet_at``; promtool's notation,
    a sample a minute.
    """

    series: dict[str, str]
    quiet_at: str
    at: str
    summary: str
    labels: dict[str, str] = field(default_factory=dict)


HOST, A = {"instance": "h:1"}, {"model": "a"}
ONE = {**A, **HOST}
CASES = {
    "HfTritonTargetDown": Case(
        {'up{job="hf-triton",instance="h:1"}': "1 0x9", 'up{job="other",instance="o"}': "0x9"},
        *("2m", "4m", "h:1 does not answer Prometheus", {"job": "hf-triton", "instance": "h:1"}),
    ),
    "HfTritonServerDown": Case(
        {'hf_triton_server_up{instance="h:1"}': "1 0x9"},
        *("1m", "3m", "tritonserver is down on h:1", HOST),
    ),
    "HfTritonModelDown": Case(
        {
            'hf_triton_model_up{model="a",instance="h:1"}': "1 0x9",
            'hf_triton_model_up{model="b",instance="h:1"}': "1x9",
        },
        *("5m", "7m", "Model a is not ready on h:1", ONE),
    ),
    "HfTritonModelGivenUp": Case(
        {'hf_triton_model_given_up{model="a",instance="h:1"}': "0x3 1x9"},
        *("2m", "5m", "Model a failed to load too often on h:1", ONE),
    ),
    "HfTritonModelDies": Case(
        {
            'hf_triton_model_deaths_total{model="a",instance="h:1"}': "0x4 1x4 2x4 3x20",
            'hf_triton_model_deaths_total{model="b",instance="h:1"}': "0x8 1x40",
        },
        *("7m", "15m", "Model a keeps dying on h:1", ONE),
    ),
    "HfTritonModelsThrash": Case(
        {
            'hf_triton_model_put_out_total{model="a",reason="room",instance="h:1"}': "0x4 1+1x30",
            'hf_triton_model_put_out_total{model="b",reason="room",instance="h:1"}': "0x8 1x40",
        },
        *("5m", "14m", "Model a is loaded again and again on h:1", ONE),
    ),
    "HfTritonServerRestarted": Case(
        {'hf_triton_server_restarts_total{instance="h:1"}': "0x4 1x20"},
        *("3m", "10m", "tritonserver died and was started again on h:1", HOST),
    ),
    "HfTritonErrors": Case(
        {
            'hf_triton_finished_total{model="a",finish_reason="stop"}': "0+90x30",
            'hf_triton_finished_total{model="a",finish_reason="error"}': "0x5 0+10x30",
            'hf_triton_finished_total{model="b",finish_reason="error"}': "0x30",
            'hf_triton_requests_total{model="c",outcome="ok"}': "0+100x30",
            'hf_triton_requests_total{model="c",outcome="error"}': "0+1x30",
        },
        *("6m", "25m", "10% of the requests to a fail", A),
    ),
    "HfTritonArmFails": Case(
        {
            'hf_triton_arm_requests_total{model="a",arm="new",outcome="answered"}': "0+75x30",
            'hf_triton_arm_requests_total{model="a",arm="new",outcome="failed"}': "0x3 0+25x30",
            'hf_triton_arm_requests_total{model="a",arm="old",outcome="answered"}': "0+75x30",
            'hf_triton_arm_requests_total{model="a",arm="old",outcome="failed"}': "0x30",
        },
        *("4m", "20m", "25% of the requests to arm new of a fail", {"model": "a", "arm": "new"}),
    ),
    "HfTritonRefused": Case(
        {'hf_triton_refused_total{model="a"}': "0x5 0+60x30"},
        *("5m", "20m", "Model a refuses 1 requests a second", A),
    ),
    "HfTritonNoSlotFree": Case(
        {
            'hf_triton_kv_slots{model="a",pod="1"}': "64x30",
            'hf_triton_kv_slots_used{model="a",pod="1"}': "10 64x30",
            'hf_triton_kv_slots{model="b",pod="1"}': "64x30",
            'hf_triton_kv_slots_used{model="b",pod="1"}': "64x30",
            'hf_triton_kv_slots{model="b",pod="2"}': "64x30",
            'hf_triton_kv_slots_used{model="b",pod="2"}': "63x30",
        },
        *("10m", "15m", "Model a has had no room for more sequences for 10 minutes", A),
    ),
    "HfTritonQueueGrows": Case(
        {
            'hf_triton_waiting{model="a"}': "0+10x30",
            'hf_triton_open_requests{model="b"}': "500x30",
            'hf_triton_open_requests{model="c"}': "0+0.5x30",
        },
        *("5m", "15m", "125 requests wait for a, more than before", A),
    ),
    "HfTritonSlowFirstToken": Case(
        {
            'hf_triton_time_to_first_token_seconds_bucket{model="a",le="5"}': "0x30",
            'hf_triton_time_to_first_token_seconds_bucket{model="a",le="10"}': "0+60x30",
            'hf_triton_time_to_first_token_seconds_bucket{model="a",le="+Inf"}': "0+60x30",
        },
        *("9m", "15m", "a: one request in 100 waits 9.95s for its first token", A),
    ),
    "HfTritonSlowTokens": Case(
        {
            'hf_triton_time_per_output_token_seconds_bucket{model="a",le="0.25"}': "0x30",
            'hf_triton_time_per_output_token_seconds_bucket{model="a",le="0.5"}': "0+60x30",
            'hf_triton_time_per_output_token_seconds_bucket{model="a",le="+Inf"}': "0+60x30",
        },
        *("9m", "15m", "a: one text in 100 takes 497.5ms a token", A),
    ),
    "HfTritonSlowQueue": Case(
        {
            'hf_triton_engine_queue_seconds_bucket{model="a",le="2.5"}': "0x30",
            'hf_triton_engine_queue_seconds_bucket{model="a",le="5"}': "0+60x30",
            'hf_triton_engine_queue_seconds_bucket{model="a",le="+Inf"}': "0+60x30",
        },
        *("9m", "15m", "a: one request in 100 waits 4.975s to be started", A),
    ),
    "HfTritonGpuMemoryNearlyFull": Case(
        {
            'nv_gpu_memory_used_bytes{gpu_uuid="g",instance="h:1"}': "98x30",
            'nv_gpu_memory_total_bytes{gpu_uuid="g",instance="h:1"}': "100x30",
        },
        *(
            "9m",
            "12m",
            "GPU g of h:1 has 98% of its memory in use",
            {"gpu_uuid": "g", "instance": "h:1"},
        ),
    ),
    "HfTritonMemoryNearlyFull": Case(
        {
            'nv_cpu_memory_used_bytes{instance="h:1"}': "96x30",
            'nv_cpu_memory_total_bytes{instance="h:1"}': "100x30",
        },
        *("9m", "12m", "The machine of h:1 has 96% of its memory in use", HOST),
    ),
}


# Metrics of a cache in pages, which few long sequences fill.
NO_PAGE_FREE = Case(
    {
        'hf_triton_kv_slots{model="a"}': "512x30",
        'hf_triton_kv_slots_used{model="a"}': "40x30",
        'hf_triton_kv_tokens{model="a"}': "10000x30",
        'hf_triton_kv_tokens_used{model="a"}': "8000 9200x30",
        'hf_triton_kv_tokens{model="b"}': "10000x30",
        'hf_triton_kv_tokens_used{model="b"}': "8900x30",
    },
    *("10m", "15m", CASES["HfTritonNoSlotFree"].summary, A),
)


def promtool_case(name: str, case: Case) -> dict[str, Any]:
    rule = RULES[name]
    fired = {
        "exp_labels": {**rule["labels"], **case.labels},
        "exp_annotations": {
            "summary": case.summary,
            "description": rule["annotations"]["description"],
        },
    }
    return {
        "interval": "1m",
        "input_series": [
            {"series": series, "values": values} for series, values in case.series.items()
        ],
        "alert_rule_test": [
            {"alertname": name, "eval_time": case.quiet_at, "exp_alerts": []},
            {"alertname": name, "eval_time": case.at, "exp_alerts": [fired]},
        ],
    }


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == set(RULES)


def test_every_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_bytes(rules())
    tests = [promtool_case(name, case) for name, case in CASES.items()]
    tests.append(promtool_case("HfTritonNoSlotFree", NO_PAGE_FREE))
    body = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(body))
    assert "SUCCESS" in promtool("test", "rules", "tests.yaml", folder=tmp_path)


@pytest.mark.parametrize(
    "target, file",
    [
        ("compose", "out/prometheus/prometheus.yaml"),
        ("kubernetes", "out/monitoring/prometheus.yaml"),
    ],
)
def test_the_configuration_is_one_that_prometheus_takes(
    deploy: Deploy, work: Path, target: str, file: str
) -> None:
    assert deploy(target).code == 0
    config = read_yaml((work / file).read_text())
    for job in config["scrape_configs"]:
        # Debian's build knows no Kubernetes to find targets in; what is done with them it knows.
        if job.pop("kubernetes_sd_configs", None):
            job["static_configs"] = [{"targets": ["pod:8002"]}]
    (work / file).write_text(yaml.safe_dump(config))
    said = promtool("check", "config", "--lint-fatal", file, folder=work)
    assert f"SUCCESS: {len(RULES)} rules found" in said


def test_the_operator_gets_the_same_rules_and_both_ports(deploy: Deploy) -> None:
    rendered = deploy("kubernetes", "--monitoring", "operator")
    rule = rendered.object("PrometheusRule")
    assert rule["spec"] == read_yaml(rules().decode())
    monitor = rendered.object("PodMonitor")["spec"]
    ports = {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]}
    assert ports == {"metrics", "health"}
    labels = rendered.object("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert "monitoring/rules.yaml" not in rendered.files


def test_the_dashboard_is_laid_out_without_overlap() -> None:
    panels = json.loads(dashboard())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells


def test_the_dashboard_asks_the_source_and_the_models_that_are_chosen() -> None:
    board = json.loads(dashboard())
    assert {entry["name"] for entry in board["templating"]["list"]} == {"datasource", "model"}
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            assert "$model" in target["expr"] or "model" not in target["expr"], target
