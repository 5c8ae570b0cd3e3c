"""What the files promise beyond their schemas: rights, probes, keys, room, how fast they scale."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.deploy.conftest import Deploy

LOCKED_DOWN = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
PLACES = {"HOME": "/tmp", "XDG_CACHE_HOME": "/tmp/cache", "HF_HOME": "/tmp/huggingface"}
WRITABLE = [{"name": name, "value": value} for name, value in PLACES.items()]
MOUNTS = [
    {"name": "config", "mountPath": "/etc/hf-triton", "readOnly": True},
    {"name": "models", "mountPath": "/models"},
    {"name": "tmp", "mountPath": "/tmp"},
]
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002, "health": 8003, "openai": 9000}


def secret(variable: str, name: str, key: str) -> dict[str, Any]:
    reference = {"name": name, "key": key, "optional": True}
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}


def probe(path: str, every_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "health"},
        "periodSeconds": every_s,
        "failureThreshold": failures,
    }


POD: dict[str, Any] = {
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "initContainers": [
        {
            "image": "hf-triton:gpu",
            "env": [*WRITABLE, secret("HF_TOKEN", "hf-token", "token")],
            "resources": {
                "requests": {"cpu": "500m", "memory": "512Mi"},
                "limits": {"memory": "2Gi"},
            },
            "securityContext": LOCKED_DOWN,
            "volumeMounts": MOUNTS,
        }
    ],
    "containers": [
        {
            "image": "hf-triton:gpu",
            "env": [
                *WRITABLE,
                secret("HF_TRITON_ADMIN_KEY", "hf-triton-keys", "admin"),
                secret("HF_TRITON_API_KEYS", "hf-triton-keys", "api"),
            ],
            "startupProbe": probe("/live", 2, 150),
            "livenessProbe": {**probe("/live", 10, 3), "timeoutSeconds": 5},
            "readinessProbe": {**probe("/ready", 5, 2), "timeoutSeconds": 5},
            "resources": {
                "requests": {"cpu": "2", "memory": "9Gi", "nvidia.com/gpu": 2},
                "limits": {"memory": "9Gi", "nvidia.com/gpu": 2},
            },
            "securityContext": LOCKED_DOWN,
            "volumeMounts": [*MOUNTS, {"name": "shm", "mountPath": "/dev/shm"}],
        }
    ],
    "volumes": [
        {"name": "config", "configMap": {"name": "hf-triton"}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "448Mi"}},
        {
            "name": "models",
            "ephemeral": {
                "volumeClaimTemplate": {
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "20Gi"}},
                    }
                }
            },
        },
    ],
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname"}
        | {"whenUnsatisfiable": "ScheduleAnyway"}
    ],
}
SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
SCALING = {
    "minReplicas": 1,
    "maxReplicas": 4,
    "metrics": [{"pods": {"target": {"averageValue": most}}} for most in ("4", "32")],
    "behavior": {
        way: {
            "stabilizationWindowSeconds": wait_s,
            "policies": [{"type": "Pods", "value": most, "periodSeconds": every_s}],
        }
        for way, wait_s, most, every_s in (("scaleUp", 30, 2, 60), ("scaleDown", 600, 1, 120))
    },
}
TRITON = {
    "environment": {**dict.fromkeys(("HF_TOKEN", "HF_TRITON_API_KEYS")), **PLACES},
    "shm_size": "448m",
    "mem_limit": "9216m",
    "healthcheck": {
        "test": ["CMD", "python", "-I", "-m", "hf_triton.serving.healthcheck"],
        "interval": "15s",
        "timeout": "5s",
        "retries": 3,
        "start_period": "30m",
    },
    "stop_grace_period": "80s",
    "init": True,
    "tmpfs": ["/tmp:exec,mode=1777"],
}
KEPT_IN = {
    "restart": "unless-stopped",
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "logging": {"driver": "json-file", "options": {"max-size": "50m", "max-file": "3"}},
}


def as_in(promised: Any, found: Any) -> Any:
    """The part of ``found`` that is promised; a list counts as a whole, its elements in part."""
    if isinstance(promised, dict) and isinstance(found, dict):
        return {key: as_in(value, found.get(key)) for key, value in promised.items()}
    if isinstance(promised, list) and isinstance(found, list) and len(promised) == len(found):
        return [as_in(*both) for both in zip(promised, found, strict=True)]
    return found


def test_a_deployment_keeps_what_its_pods_promise(deploy: Deploy) -> None:
    rendered = deploy("kubernetes", "--openai", "--host", "models.example.org")
    deployment = rendered.object("Deployment")["spec"]
    assert as_in(POD, rendered.pod()) == POD
    assert (deployment["strategy"], deployment["progressDeadlineSeconds"]) == (SURGE, 1800)
    scaling = rendered.object("HorizontalPodAutoscaler")["spec"]
    assert as_in(SCALING, scaling) == SCALING
    disruption = rendered.object("PodDisruptionBudget")["spec"]
    assert disruption["maxUnavailable"] == 1
    assert disruption["selector"] == deployment["selector"]
    ports = rendered.object("Service")["spec"]["ports"]
    assert {port["name"]: port["port"] for port in ports} == PORTS
    assert [port["appProtocol"] for port in ports if port["name"] == "grpc"] == [
        "kubernetes.io/h2c"
    ]
    ingress = rendered.object("Ingress")
    assert ingress["metadata"]["annotations"] == {
        "nginx.ingress.kubernetes.io/proxy-body-size": "64m"
    }
    *models, openai = ingress["spec"]["rules"][0]["http"]["paths"]
    backends = [one["backend"]["service"]["port"]["name"] for one in (*models, openai)]
    assert (backends, openai["path"]) == (["http"] * len(models) + ["openai"], "/v1")


def test_an_inference_service_keeps_the_same(deploy: Deploy) -> None:
    service = deploy("kserve").object("InferenceService")
    assert as_in(POD, service["spec"]["predictor"]) == POD
    assert service["spec"]["predictor"]["deploymentStrategy"] == SURGE
    assert service["spec"]["predictor"]["containers"][0]["name"] == "kserve-container"
    assert service["metadata"]["annotations"] == {
        "serving.kserve.io/deploymentMode": "RawDeployment",
        "serving.kserve.io/autoscalerClass": "external",
    }


@pytest.mark.parametrize("name", ["triton", "prometheus", "grafana"])
def test_a_service_of_compose_keeps_what_it_promises(deploy: Deploy, name: str) -> None:
    rendered = deploy("compose")
    service = rendered.yaml("compose.yaml")["services"][name]
    promised = {**KEPT_IN, **(TRITON if name == "triton" else {})}
    assert as_in(promised, service) == promised
    assert service.get("read_only", False) is (name != "grafana"), "Grafana writes beside its data"
    datasource = rendered.yaml("grafana/provisioning/datasources/hf-triton.yaml")
    assert datasource["datasources"][0]["url"] == "http://prometheus:9090"
    dashboards = rendered.yaml("grafana/provisioning/dashboards/hf-triton.yaml")
    assert dashboards["providers"][0]["options"] == {"path": "/etc/grafana/dashboards"}
