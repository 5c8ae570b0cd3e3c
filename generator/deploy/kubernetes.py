"""Kubernetes: a Deployment, or for KServe an InferenceService whose predictor is our container, the
objects that belong to it, and a kustomization of all.

KServe in its Standard mode (RawDeployment until 0.15, a name that it still takes): no Knative, so
gRPC and metrics have ports too and loading may take its time. Knows which objects are wanted; what
stands in them is in the templates.
"""

from __future__ import annotations

import hashlib
import json
import shlex

from generator.deploy import models_file
from generator.deploy.rendering import dashboard, render, rule_groups, rules
from generator.deploy.server import Server
from generator.errors import UsageError


def files(server: Server) -> dict[str, bytes]:
    """The objects, with the kustomization that names those that `kubectl apply -k` sends, and the
    files of the monitoring. Raises UsageError, and SpecError for models that pods would not find.
    """
    asked = server.asked
    is_kserve, has_operator = asked.target == "kserve", asked.monitoring == "operator"
    if is_kserve and asked.host:
        raise UsageError("--host: KServe makes an InferenceService's Ingress itself; leave it out")
    contents = models_file.files_of(server)
    digest = hashlib.sha256(json.dumps(sorted(contents.items())).encode()).hexdigest()
    kinds = {
        "inferenceservice": is_kserve,
        "deployment": not is_kserve,
        "service": not is_kserve,
        "configmap": True,
        "disruption": True,
        "autoscaler": asked.scales,
        "ingress": asked.host,
        "claim": asked.shared_claim and server.hub_parts,
        "podmonitor": has_operator,
        "prometheusrule": has_operator,
    }
    values = {"contents": contents, "digest": digest, "groups": rule_groups()}
    found = {
        f"{kind}.yaml": render(f"{kind}.yaml.j2", server, **values)
        for kind, is_wanted in kinds.items()
        if is_wanted
    }
    found["kustomization.yaml"] = render("kustomization.yaml.j2", server, resources=sorted(found))
    found["monitoring/dashboard.json"] = dashboard()
    if not has_operator:
        found["monitoring/rules.yaml"] = rules()
        found["monitoring/prometheus.yaml"] = render("prometheus-kubernetes.yaml.j2", server)
    return found


def next_steps(server: Server) -> list[str]:
    asked, image, steps = server.asked, server.image, list[str]()
    space = f" -n {asked.namespace}" if asked.namespace else ""
    if asked.image is None:
        steps.append(
            f"docker build --target {server.device} -t {image} .   # push it where the cluster "
            "pulls from, and name it with --image"
        )
    if asked.namespace:
        steps.append(f"kubectl create namespace {asked.namespace}")
    if server.hub_parts:
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
