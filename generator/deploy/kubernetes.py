"""Kubernetes: for each server a Deployment, or for KServe an InferenceService whose predictor is
our container, and what belongs to it; and a kustomization of all.

KServe in its Standard mode (RawDeployment until 0.15, a name that it still takes): no Knative, so
gRPC and metrics have ports too and loading may take its time. Knows which file holds what; what
stands in them is in the templates.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from generator.deploy import models_file, monitoring
from generator.deploy.rendering import render
from generator.deploy.servers import Server
from generator.errors import UsageError
from generator.models_yaml import models_lock
from generator.yaml_file import nodes


def files_and_steps(servers: Sequence[Server]) -> tuple[dict[str, bytes], list[str]]:
    """The files of each server, in a folder where it has but one model, and those of all, with the
    kustomization that names what `kubectl apply -k` sends; and the commands for that. Raises
    UsageError.
    """
    asked, sent = servers[0].asked, dict[str, bytes]()
    if asked.target == "kserve" and asked.host:
        raise UsageError("--host: KServe makes an InferenceService's Ingress itself; leave it out")
    config = Path(asked.config)
    root, lock = nodes.read(config), models_lock.read_lock(config)
    for server in servers:
        contents = models_file.files_of(server, root, lock)
        folder = f"{server.name}/" if server.model else ""
        for name, content in _server_files(server, contents).items():
            sent[f"{folder}{name}"] = content
    sent.update(_shared_files(servers))
    kustomization = render("kustomization.yaml.j2", resources=sorted(sent), s=asked)
    beside = {"monitoring/dashboard.json": monitoring.dashboard()}
    if asked.monitoring == "files":
        beside["monitoring/rules.yaml"] = monitoring.rules()
        beside["monitoring/prometheus.yaml"] = render("prometheus-kubernetes.yaml.j2", s=asked)
    found = {**sent, "kustomization.yaml": kustomization, **beside}
    return found, _steps(servers)


def _steps(servers: Sequence[Server]) -> list[str]:
    asked, image, steps = servers[0].asked, servers[0].image, list[str]()
    space = f" -n {asked.namespace}" if asked.namespace else ""
    if asked.image is None:
        target = image.rpartition(":")[2]
        steps.append(
            f"docker build --target {target} -t {image} .   # push it where the cluster pulls "
            "from, and name it with --image"
        )
    if asked.namespace:
        steps.append(f"kubectl create namespace {asked.namespace}")
    if any(server.hub_parts for server in servers):
        steps.append(
            f"kubectl{space} create secret generic {asked.hf_token_secret} "
            '--from-literal=token="$HF_TOKEN"   # for gated models'
        )
    api = ' --from-literal=api="client $(openssl rand -hex 32)"' if asked.openai else ""
    steps.append(
        f"kubectl{space} create secret generic {asked.name}-keys "
        f'--from-literal=admin="$(openssl rand -hex 32)"{api}'
    )
    # On the server: kubectl would note each object, large files too, in an annotation of its own.
    return [*steps, f"kubectl apply --server-side -k {shlex.quote(asked.output)}"]


def _shared_files(servers: Sequence[Server]) -> dict[str, bytes]:
    """The files that all servers have in common and that are sent."""
    asked, shared = servers[0].asked, dict[str, bytes]()
    if asked.host:
        shared["ingress.yaml"] = render("ingress.yaml.j2", servers=servers, s=asked)
    sizes = [server.storage_mib for server in servers if server.hub_parts]
    if asked.shared_claim and sizes:
        size = asked.storage_size or sum(sizes)
        shared["claim.yaml"] = render("claim.yaml.j2", s=asked, storage_mib=size)
    if asked.monitoring == "operator":
        shared["podmonitor.yaml"] = render("podmonitor.yaml.j2", s=asked)
        groups = monitoring.rule_groups()
        shared["prometheusrule.yaml"] = render("prometheusrule.yaml.j2", s=asked, groups=groups)
    return shared


def _server_files(server: Server, contents: Mapping[str, str]) -> dict[str, bytes]:
    is_kserve, asked = server.asked.target == "kserve", server.asked
    kinds = ["inferenceservice"] if is_kserve else ["deployment", "service"]
    kinds += ["configmap", "disruption", *(["autoscaler"] if asked.scales else [])]
    digest = hashlib.sha256(json.dumps(sorted(contents.items())).encode()).hexdigest()
    scaled = f"{server.name}-predictor" if is_kserve else server.name
    values = {"server": server, "s": asked, "contents": contents, "digest": digest}
    return {f"{kind}.yaml": render(f"{kind}.yaml.j2", scaled=scaled, **values) for kind in kinds}
