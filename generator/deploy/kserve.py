"""KServe: for each server an InferenceService whose predictor is our container.

In KServe's Standard mode (RawDeployment until 0.15, a name that it still takes): no Knative, so
gRPC and metrics have ports too and loading may take its time. Pods are those of kubernetes.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from generator.deploy.kubernetes import (
    configmap,
    contents_of,
    kustomized,
    next_steps,
)
from generator.deploy.options import ClusterOptions
from generator.deploy.rendering import render
from generator.deploy.servers import Server
from generator.errors import UsageError

__all__ = ["files", "next_steps"]
_MAX_NAME = 63 - len("-predictor")  # what KServe calls the Service and the Deployment that it makes


def files(servers: Sequence[Server], settings: ClusterOptions) -> dict[str, bytes]:
    """Everything, with the kustomization that names what `kubectl apply -k` sends."""
    if settings.host:
        raise UsageError("--host: KServe makes an InferenceService's Ingress itself; leave it out")
    for server in servers:
        if len(server.name) > _MAX_NAME:
            raise UsageError(
                f"the InferenceService '{server.name}' would have {len(server.name)} letters, of "
                f"which KServe takes {_MAX_NAME}: give a shorter --name"
            )
    return kustomized(servers, settings, _server_files)


def _server_files(server: Server, settings: ClusterOptions) -> dict[str, bytes]:
    values = {"server": server, "s": settings, "digest": contents_of(server).digest}
    found = {
        "configmap.yaml": configmap(server, settings),
        "inferenceservice.yaml": render("inferenceservice.yaml.j2", **values),
        "disruption.yaml": render("disruption.yaml.j2", **values),
    }
    if settings.scales:
        scaled = f"{server.name}-predictor"
        found["autoscaler.yaml"] = render("autoscaler.yaml.j2", scaled=scaled, **values)
    return found
