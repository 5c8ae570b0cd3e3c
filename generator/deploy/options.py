"""What ``hf-triton deploy`` is asked for, by the names of its flags (arguments.py)."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import Any

_DEFAULT_MAX_REPLICAS = 4
_DRAIN_S = 10
# Triton has 65 s to end what is in flight, OpenAI's API 5 more; some for the rest.
_STOP_S = 80


@dataclass(frozen=True, kw_only=True)
class Options:
    """Of every target; what only a cluster can be asked for has a default."""

    target: str
    config: str
    output: str
    name: str
    image: str | None
    device: str | None
    gpus: int | None
    cpu: str
    memory: int | None
    shm_size: int | None
    openai: bool
    per_model: bool = False
    gpus_per_node: int | None = None
    storage_size: int | None = None
    local_models: str | None = None


@dataclass(frozen=True, kw_only=True)
class ComposeOptions(Options):
    """Of Docker Compose."""

    listen: str
    prometheus_image: str
    grafana_image: str
    stop_s: int = _STOP_S


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(Options):
    """Of Kubernetes and KServe."""

    namespace: str | None
    replicas: int
    max_replicas: int
    waiting_target: int
    open_target: int
    storage_class: str | None
    shared_claim: bool
    hf_token_secret: str
    local_claim: str | None
    image_pull_secret: str | None
    node_selector: list[str]
    rollout: str
    load_minutes: int
    host: str | None
    ingress_class: str | None
    tls_secret: str | None
    network_policy: bool
    monitoring: str
    drain_s: int = _DRAIN_S
    grace_s: int = _DRAIN_S + _STOP_S

    @property
    def scales(self) -> bool:
        return self.max_replicas > self.replicas

    @property
    def max_unavailable(self) -> int:
        return int(self.rollout == "replace")

    @property
    def node_labels(self) -> list[list[str]]:
        return [label.split("=", 1) for label in self.node_selector]


def compose_options(args: argparse.Namespace) -> ComposeOptions:
    return ComposeOptions(**_known(ComposeOptions, args))


def cluster_options(args: argparse.Namespace) -> ClusterOptions:
    most = args.max_replicas or max(_DEFAULT_MAX_REPLICAS, args.replicas)
    return ClusterOptions(**{**_known(ClusterOptions, args), "max_replicas": most})


def _known(kind: type[Options], args: argparse.Namespace) -> dict[str, Any]:
    names = [field.name for field in fields(kind)]
    return {name: getattr(args, name) for name in names if hasattr(args, name)}
