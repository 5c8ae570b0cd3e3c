"""The LeaderWorkerSet API, but for its pods: what its CRD allows, as an API server checks it.

From https://github.com/kubernetes-sigs/lws, config/crd/bases, v1; the pod templates are Kubernetes'
own and are held against that.
"""

from __future__ import annotations

from typing import Any

import jsonschema
import kubernetes_validate


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    """The schema of an object with these properties alone."""
    return {
        "type": "object",
        "required": list(required),
        "additionalProperties": False,
        "properties": properties,
    }


_ANYTHING = {"type": "object"}
_TEMPLATE = _object(metadata=_ANYTHING, spec=_ANYTHING)
_NUMBER_OR_SHARE = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
_SPEC = _object(
    "leaderWorkerTemplate",
    replicas={"type": "integer"},
    startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
    networkConfig=_object("subdomainPolicy", subdomainPolicy={"type": "string"}),
    rolloutStrategy=_object(
        "type",
        type={"enum": ["RollingUpdate"]},
        rollingUpdateConfiguration=_object(
            maxSurge=_NUMBER_OR_SHARE, maxUnavailable=_NUMBER_OR_SHARE
        ),
    ),
    leaderWorkerTemplate=_object(
        "workerTemplate",
        leaderTemplate=_TEMPLATE,
        workerTemplate=_TEMPLATE,
        size={"type": "integer"},
        restartPolicy={"enum": ["Default", "RecreateGroupOnPodRestart", "None"]},
    ),
)
_OBJECT = _object(
    *("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "leaderworkerset.x-k8s.io/v1"},
    kind={"const": "LeaderWorkerSet"},
    metadata=_ANYTHING,
    spec=_SPEC,
)


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
