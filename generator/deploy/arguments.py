"""The flags of ``hf-triton deploy``: what can be said of each target.

What a value may be by itself is for values.py, what values mean together for targets.py and
servers.py.
"""

from __future__ import annotations

import argparse

from generator.deploy import values
from generator.flag_values import whole

TARGETS = ("compose", "kubernetes", "kserve")
_EXAMPLES = """\
examples:
  hf-triton deploy compose --device cpu      # Triton, Prometheus, Grafana on this machine
  hf-triton deploy kubernetes --image my-registry/hf-triton:gpu --max-replicas 8
  hf-triton deploy kubernetes --per-model --storage-class fast --namespace models
  hf-triton deploy kserve --image my-registry/hf-triton:gpu
  hf-triton deploy kubernetes --diff         # exit 1 when the folder is stale

Files edited by hand are never overwritten without --force. No file holds a secret: tokens and keys
come by environment (Compose) or as Secrets (Kubernetes); the commands to make those are printed.
"""
_ABOUT = {
    "compose": "Triton, Prometheus and Grafana with our dashboard and alert rules",
    "kubernetes": "a Deployment for all models, or one for each, ready for `kubectl apply -k`",
    "kserve": "an InferenceService for all models, or one for each, for `kubectl apply -k`",
}


def add_targets(parser: argparse.ArgumentParser) -> None:
    """Adds compose, kubernetes and kserve."""
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    targets = parser.add_subparsers(dest="target", required=True, metavar="TARGET")
    for name in TARGETS:
        about = _ABOUT[name]
        sentence = f"{about[0].upper()}{about[1:]}."
        target = targets.add_parser(name, help=about, description=sentence)
        _add_common(target, name)
        if name == "compose":
            _add_compose(target)
        else:
            _add_cluster(target)


def _add_common(parser: argparse.ArgumentParser, target: str) -> None:
    parser.add_argument(
        "--config", default=argparse.SUPPRESS, metavar="FILE", help="default: models.yaml"
    )
    parser.add_argument(
        "--output",
        default=f"deploy/{target}",
        metavar="FOLDER",
        help=f"where the files go (default: deploy/{target})",
    )
    parser.add_argument(
        "--diff", action="store_true", help="write nothing; show what would change, exit 1 if so"
    )
    parser.add_argument("--force", action="store_true", help="overwrite files edited by hand")
    parser.add_argument(
        "--name",
        type=values.name,
        default="hf-triton",
        help="name of the deployment (default: hf-triton)",
    )
    parser.add_argument(
        "--image",
        type=values.image,
        help="what the Dockerfile builds (default: hf-triton:gpu, or :cpu without GPUs)",
    )
    parser.add_argument(
        "--device",
        choices=("gpu", "cpu"),
        help="what models run on (default: gpu, unless all instance groups are KIND_CPU)",
    )
    parser.add_argument(
        "--gpus",
        type=whole(0, 64),
        metavar="N",
        help="GPUs of each server (default: as many as its instance groups name, else 1)",
    )
    parser.add_argument("--cpu", type=values.cores, default="2", metavar="CORES", help="default: 2")
    parser.add_argument(
        "--memory",
        type=values.size,
        metavar="SIZE",
        help="of each server, such as 16Gi (default: 2Gi, 1Gi for each Python process, and the "
        "weights where models.lock has their size; caches of keys and values come on top)",
    )
    parser.add_argument(
        "--shm-size",
        type=values.size,
        metavar="SIZE",
        help="shared memory, through which tensors pass, such as 1Gi (default: by the number of "
        "Python processes, and the weights of models with several copies on a CPU)",
    )
    parser.add_argument(
        "--openai", action="store_true", help="also serve OpenAI's API, on port 9000"
    )


def _add_compose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        type=values.address,
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address of this machine that ports are bound to; 0.0.0.0: all (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--prometheus-image", type=values.image, default="prom/prometheus:v3.5.0", metavar="IMAGE"
    )
    parser.add_argument(
        "--grafana-image", type=values.image, default="grafana/grafana:12.1.0", metavar="IMAGE"
    )


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--namespace", type=values.dns_label, help="default: that of kubectl's context"
    )
    parser.add_argument(
        "--per-model",
        action="store_true",
        help="give each model its own servers; models that share a canary stay together",
    )
    parser.add_argument(
        "--gpus-per-node",
        type=whole(1, 10_000),
        metavar="N",
        help="GPUs that a node has; a model whose options.vllm ask for more (tensor_parallel_size "
        "x pipeline_parallel_size) is refused (default: 8)",
    )
    _add_scaling(parser)
    _add_storage(parser)
    _add_placing(parser)
    _add_reaching(parser)


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scaling")
    group.add_argument(
        "--replicas", type=whole(1, 10_000), default=1, metavar="N", help="default: 1"
    )
    group.add_argument(
        "--max-replicas",
        type=whole(1, 10_000),
        metavar="N",
        help="scale up to N replicas by queue and slots, if prometheus-adapter runs with the rules "
        "that are written for it; the same as --replicas: never scale (default: 4)",
    )
    group.add_argument(
        "--waiting-target",
        type=whole(1, 10_000),
        default=4,
        metavar="N",
        help="scale up beyond N waiting requests in each server (default: 4)",
    )
    group.add_argument(
        "--open-target",
        type=whole(1, 10_000),
        default=32,
        metavar="N",
        help="scale encoders up beyond N open requests in each server (default: 32)",
    )


def _add_storage(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "weights",
        "They are fetched before the server starts, into a volume that each pod gets for itself, "
        "or once into a claim that all pods share.",
    )
    group.add_argument(
        "--storage-size",
        type=values.size,
        metavar="SIZE",
        help="default: 20Gi, or by models.lock, which has the files' sizes",
    )
    group.add_argument("--storage-class", type=values.dns_name, metavar="CLASS")
    group.add_argument(
        "--shared-claim",
        action="store_true",
        help="one ReadWriteMany claim for all pods: a model is downloaded once",
    )
    group.add_argument(
        "--hf-token-secret",
        type=values.dns_name,
        default="hf-token",
        metavar="SECRET",
        help="Secret with the Hub token as `token`; may be missing (default: hf-token)",
    )
    group.add_argument(
        "--local-models",
        type=values.folder,
        metavar="FOLDER",
        help="folder in the image, or in --local-claim, that relative `model:` paths start from: "
        "folders of this machine are not copied",
    )
    group.add_argument(
        "--local-claim",
        type=values.dns_name,
        metavar="CLAIM",
        help="a PersistentVolumeClaim to mount at --local-models, read-only",
    )


def _add_placing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where pods run")
    group.add_argument("--image-pull-secret", type=values.dns_name, metavar="SECRET")
    group.add_argument(
        "--node-selector",
        type=values.label,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a label that nodes must have; may be given more than once",
    )
    group.add_argument(
        "--rollout",
        choices=("surge", "replace"),
        default="surge",
        help="surge: a new pod is ready before an old one ends, which needs room and GPUs for one "
        "more; replace: an old one ends first (default: surge)",
    )
    group.add_argument(
        "--load-minutes",
        type=whole(1, 10_000),
        default=30,
        metavar="N",
        help="how long weights may take to load before a rollout counts as failed (default: 30)",
    )


def _add_reaching(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("access")
    group.add_argument(
        "--host", type=values.dns_name, help="make an Ingress for this host name (default: none)"
    )
    group.add_argument("--ingress-class", type=values.dns_name, metavar="CLASS")
    group.add_argument(
        "--tls-secret", type=values.dns_name, metavar="SECRET", help="the host's certificate"
    )
    group.add_argument(
        "--network-policy",
        action="store_true",
        help="allow requests from this namespace only; others may read metrics",
    )
    group.add_argument(
        "--monitoring",
        choices=("files", "operator"),
        default="files",
        help="operator: a PodMonitor and a PrometheusRule, for the Prometheus operator; files: "
        "Prometheus' own configuration and rules (default: files)",
    )
