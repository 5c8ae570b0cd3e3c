"""Kubernetes: for each server a Deployment, or for KServe an InferenceService whose predictor is
our container, and what belongs to it; and a kustomization of all.

KServe in its Standard mode (RawDeployment until 0.15, a name that it still takes): no Knative, so
gRPC and metrics have ports too and loading may take its time. Knows which file holds what; what
stands in them is in the templates.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from generator.deploy import monitoring
from generator.deploy.options import Options
from generator.deploy.rendering import render
from generator.deploy.servers import Server
from generator.errors import UsageError

_MAX_NAME = 63 - len("-predictor")  # what KServe calls the Service and the Deployment that it makes
_MAX_CONFIG_BYTES = 2**20 - 2**14  # what a ConfigMap may hold, less its own names
_MAX_ANNOTATION_BYTES = 2**18 - 2**13  # what all annotations may hold, less the object's rest


class Contents(NamedTuple):
    """A server's files, as a ConfigMap takes them: texts, and what is none in base64."""

    texts: dict[str, str]
    binaries: dict[str, str]

    def add(self, name: str, content: bytes) -> None:
        try:
            self.texts[name] = content.decode()
        except UnicodeDecodeError:
            self.binaries[name] = base64.b64encode(content).decode()

    @property
    def digest(self) -> str:
        items = [list(self.texts.items()), list(self.binaries.items())]
        return hashlib.sha256(json.dumps(items).encode()).hexdigest()


def files(servers: Sequence[Server], settings: Options) -> dict[str, bytes]:
    """The files of each server, in a folder where it has but one model, and those of all, with the
    kustomization that names what `kubectl apply -k` sends. Raises UsageError.
    """
    if settings.target == "kserve" and settings.host:
        raise UsageError("--host: KServe makes an InferenceService's Ingress itself; leave it out")
    sent: dict[str, bytes] = {}
    for server in servers:
        folder = f"{server.name}/" if server.model else ""
        for name, content in _server_files(server, settings).items():
            sent[f"{folder}{name}"] = content
    sent.update(_shared_files(servers, settings))
    kustomization = render("kustomization.yaml.j2", resources=sorted(sent), s=settings)
    beside = {"monitoring/dashboard.json": monitoring.dashboard()}
    if settings.monitoring == "files":
        beside["monitoring/rules.yaml"] = monitoring.rules()
        beside["monitoring/prometheus.yaml"] = render("prometheus-kubernetes.yaml.j2", s=settings)
    return {**sent, "kustomization.yaml": kustomization, **beside}


def next_steps(servers: Sequence[Server], settings: Options) -> list[str]:
    space = f" -n {settings.namespace}" if settings.namespace else ""
    steps = []
    if settings.image is None:
        image = servers[0].image
        target = image.rpartition(":")[2]
        steps.append(
            f"docker build --target {target} -t {image} .   # push it where the cluster pulls "
            "from, and name it with --image"
        )
    if settings.namespace:
        steps.append(f"kubectl create namespace {settings.namespace}")
    if any(server.from_hub for server in servers):
        steps.append(
            f"kubectl{space} create secret generic {settings.hf_token_secret} "
            '--from-literal=token="$HF_TOKEN"   # for gated models'
        )
    openai = ' --from-literal=openai="$(openssl rand -hex 32)"' if settings.openai else ""
    steps.append(
        f"kubectl{space} create secret generic {settings.name}-keys "
        f'--from-literal=admin="$(openssl rand -hex 32)"{openai}'
    )
    # Else kubectl notes each object in an annotation of its own.
    sizes = (len(json.dumps(contents_of(server))) for server in servers)
    flag = " --server-side" if any(size > _MAX_ANNOTATION_BYTES for size in sizes) else ""
    return [*steps, f"kubectl apply{flag} -k {shlex.quote(settings.output)}"]


def _shared_files(servers: Sequence[Server], settings: Options) -> dict[str, bytes]:
    """What all servers have in common and is sent."""
    shared: dict[str, bytes] = {}
    if settings.network_policy:
        shared["networkpolicy.yaml"] = render("networkpolicy.yaml.j2", s=settings)
    if settings.host:
        shared["ingress.yaml"] = render("ingress.yaml.j2", servers=servers, s=settings)
    sizes = [server.storage_mib for server in servers if server.from_hub]
    if settings.shared_claim and sizes:
        size = settings.storage_size or sum(sizes)
        shared["claim.yaml"] = render("claim.yaml.j2", s=settings, storage_mib=size)
    if settings.monitoring == "operator":
        shared["podmonitor.yaml"] = render("podmonitor.yaml.j2", s=settings)
        groups = monitoring.rule_groups()
        shared["prometheusrule.yaml"] = render("prometheusrule.yaml.j2", s=settings, groups=groups)
    return shared


def contents_of(server: Server) -> Contents:
    contents = Contents({}, {})
    for name, content in sorted(server.files.items()):
        contents.add(name, content)
    return contents


def _server_files(server: Server, settings: Options) -> dict[str, bytes]:
    """Raises UsageError where a name is too long, or the files are too large for a ConfigMap."""
    size = sum(len(content) for content in server.files.values())
    if size > _MAX_CONFIG_BYTES:
        largest = max(server.files, key=lambda name: len(server.files[name]))
        raise UsageError(
            f"the files of '{server.name}' have {size} bytes, of which a ConfigMap holds "
            f"{_MAX_CONFIG_BYTES}; the largest is {largest}: deploy fewer models together "
            "(--per-model), or shorten it"
        )
    is_kserve = settings.target == "kserve"
    if is_kserve and len(server.name) > _MAX_NAME:
        raise UsageError(
            f"the InferenceService '{server.name}' would have {len(server.name)} letters, of which "
            f"KServe takes {_MAX_NAME}: give a shorter --name"
        )
    kinds = ["inferenceservice"] if is_kserve else ["deployment", "service"]
    kinds += ["configmap", "disruption", *(["autoscaler"] if settings.scales else [])]
    scaled = f"{server.name}-predictor" if is_kserve else server.name
    values = {"server": server, "s": settings, "contents": contents_of(server), "scaled": scaled}
    return {f"{kind}.yaml": render(f"{kind}.yaml.j2", **values) for kind in kinds}
