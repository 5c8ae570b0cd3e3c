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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from generator.deploy import monitoring
from generator.deploy.options import Options
from generator.deploy.rendering import render
from generator.deploy.servers import Server, quantity
from generator.errors import UsageError

_MAX_NAME = 63 - len("-predictor")  # what KServe calls the Service and the Deployment that it makes
_MAX_CONFIG_BYTES = 2**20 - 2**14  # what a ConfigMap may hold, less its own names
_MAX_ANNOTATION_BYTES = 2**18 - 2**13  # what all annotations may hold, less the object's rest


@dataclass(frozen=True)
class Contents:
    """A server's files, as a ConfigMap takes them."""

    texts: tuple[tuple[str, str], ...]
    binaries: tuple[tuple[str, str], ...]
    digest: str


def files(servers: Sequence[Server], settings: Options) -> dict[str, bytes]:
    """The files of each server, in a folder where it has but one model, and those of all, with the
    kustomization that names what `kubectl apply -k` sends. Raises UsageError.
    """
    if settings.target == "kserve":
        _check_kserve(servers, settings)
    sent: dict[str, bytes] = {}
    for server in servers:
        folder = f"{server.name}/" if server.model else ""
        for name, content in _server_files(server, settings).items():
            sent[f"{folder}{name}"] = content
    sent.update(_shared_files(servers, settings))
    return _with_kustomization(sent, settings)


def next_steps(servers: Sequence[Server], settings: Options) -> list[str]:
    """Commands that bring it up: secrets first."""
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
    flag = " --server-side" if any(map(_is_long, servers)) else ""
    return [*steps, f"kubectl apply{flag} -k {shlex.quote(settings.output)}"]


def _is_long(server: Server) -> bool:
    """Whether kubectl can't note a ConfigMap in its own annotation, as it does by itself."""
    contents = contents_of(server)
    return len(json.dumps([contents.texts, contents.binaries])) > _MAX_ANNOTATION_BYTES


def _shared_files(servers: Sequence[Server], settings: Options) -> dict[str, bytes]:
    """What all servers have in common and is sent."""
    shared: dict[str, bytes] = {}
    wanted = {
        "networkpolicy.yaml": settings.network_policy,
        "ingress.yaml": settings.host,
    }
    for name, is_wanted in wanted.items():
        if is_wanted:
            shared[name] = render(f"{name}.j2", servers=servers, s=settings)
    if settings.shared_claim and any(server.from_hub for server in servers):
        storage = quantity(sum(server.storage_mib for server in servers if server.from_hub))
        if settings.storage_size:
            storage = servers[0].storage
        shared["claim.yaml"] = render("claim.yaml.j2", s=settings, storage=storage)
    if settings.monitoring == "operator":
        shared["podmonitor.yaml"] = render("podmonitor.yaml.j2", s=settings)
        shared["prometheusrule.yaml"] = render(
            "prometheusrule.yaml.j2", s=settings, groups=monitoring.rule_groups()
        )
    return shared


def _with_kustomization(sent: Mapping[str, bytes], settings: Options) -> dict[str, bytes]:
    """What is sent, the kustomization that lists it, and the files for who watches and scales."""
    kustomization = render("kustomization.yaml.j2", resources=sorted(sent), s=settings)
    beside = {"monitoring/dashboard.json": monitoring.dashboard()}
    if settings.monitoring == "files":
        beside["monitoring/rules.yaml"] = monitoring.rules()
        beside["monitoring/prometheus.yaml"] = render("prometheus-kubernetes.yaml.j2", s=settings)
    return {**sent, "kustomization.yaml": kustomization, **beside}


def configmap(server: Server, settings: Options) -> bytes:
    """The ConfigMap of a server's files. Raises UsageError where they are too large for one."""
    size = sum(len(content) for content in server.files.values())
    if size > _MAX_CONFIG_BYTES:
        largest = max(server.files, key=lambda name: len(server.files[name]))
        raise UsageError(
            f"the files of '{server.name}' have {size} bytes, of which a ConfigMap holds "
            f"{_MAX_CONFIG_BYTES}; the largest is {largest}: deploy fewer models together "
            "(--per-model), or shorten it"
        )
    return render("configmap.yaml.j2", server=server, contents=contents_of(server), s=settings)


def contents_of(server: Server) -> Contents:
    """Text as it is, what is none in base64; and a hash that changes with either."""
    texts, binaries = [], []
    for name, content in sorted(server.files.items()):
        text = _decoded(content)
        if text is None:
            binaries.append((name, base64.b64encode(content).decode()))
        else:
            texts.append((name, text))
    digest = hashlib.sha256(json.dumps([texts, binaries]).encode()).hexdigest()
    return Contents(tuple(texts), tuple(binaries), digest)


def _decoded(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _server_files(server: Server, settings: Options) -> dict[str, bytes]:
    is_kserve = settings.target == "kserve"
    kinds = ("inferenceservice",) if is_kserve else ("deployment", "service")
    scaled = f"{server.name}-predictor" if is_kserve else server.name
    kinds += ("disruption", *(("autoscaler",) if settings.scales else ()))
    digest = contents_of(server).digest
    found = {"configmap.yaml": configmap(server, settings)}
    for kind in kinds:
        found[f"{kind}.yaml"] = render(
            f"{kind}.yaml.j2", server=server, s=settings, digest=digest, scaled=scaled
        )
    return found


def _check_kserve(servers: Sequence[Server], settings: Options) -> None:
    if settings.host:
        raise UsageError("--host: KServe makes an InferenceService's Ingress itself; leave it out")
    for server in servers:
        if len(server.name) > _MAX_NAME:
            raise UsageError(
                f"the InferenceService '{server.name}' would have {len(server.name)} letters, of "
                f"which KServe takes {_MAX_NAME}: give a shorter --name"
            )
