"""The LeaderWorkerSet API, but for its pods: what its CRD allows, as an API server checks it.

From https://github.com/kubernetes-sigs/lws, config/crd/bases, v1; the pod templates are Kubernetes'
own and are held against that.
"""

from __future__ import annotations

from typing import Any

import jsonschema
import kubernetes_validate

_TEMPLATE = {
    "type": "object",
    "properties": {"metadata": {"type": "object"}, "spec": {"type": "object"}},
    "additionalProperties": False,
}
_NUMBER_OR_SHARE = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
_SPEC = {
    "type": "object",
    "required": ["leaderWorkerTemplate"],
    "additionalProperties": False,
    "properties": {
        "replicas": {"type": "integer"},
        "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
        "networkConfig": {
            "type": "object",
            "required": ["subdomainPolicy"],
            "additionalProperties": False,
            "properties": {"subdomainPolicy": {"type": "string"}},
        },
        "rolloutStrategy": {
            "type": "object",
            "required": ["type"],
            "additionalProperties": False,
            "properties": {
                "type": {"enum": ["RollingUpdate"]},
                "rollingUpdateConfiguration": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "maxSurge": _NUMBER_OR_SHARE,
                        "maxUnavailable": _NUMBER_OR_SHARE,
                    },
                },
            },
        },
        "leaderWorkerTemplate": {
            "type": "object",
            "required": ["workerTemplate"],
            "additionalProperties": False,
            "properties": {
                "leaderTemplate": _TEMPLATE,
                "workerTemplate": _TEMPLATE,
                "size": {"type": "integer"},
                "restartPolicy": {
                    "enum": ["Default", "RecreateGroupOnPodRestart", "None"],
                },
            },
        },
    },
}
_OBJECT = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "kind": {"const": "LeaderWorkerSet"},
        "metadata": {"type": "object"},
        "spec": _SPEC,
    },
}


def check(entry: dict[str, Any], versions: tuple[str, ...]) -> None:
    """Raises ValidationError where an API server would refuse ``entry``."""
    jsonschema.validate(entry, _OBJECT)
    templates = entry["spec"]["leaderWorkerTemplate"]
    for name in ("leaderTemplate", "workerTemplate"):
        template = templates[name]
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        pod["metadata"] = {"name": "pod", **template["metadata"]}
        for version in versions:
            kubernetes_validate.validate(pod, version, strict=True)
