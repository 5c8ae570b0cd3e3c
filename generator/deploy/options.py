"""What ``hf-triton deploy`` can be asked for: each field of Options is a flag, and what templates
print. What values mean together is for targets.py and servers.py.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from generator.flag_values import whole

TARGETS = {
    "compose": "Triton, Prometheus and Grafana with our dashboard and alert rules",
    "kubernetes": "a Deployment for all models, or one for each, ready for `kubectl apply -k`",
    "kserve": "an InferenceService for all models, or one for each, for `kubectl apply -k`",
}
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
_GROUPS = {  # of targets on a cluster
    "scaling": None,
    "weights": "They are fetched before the server starts, into a volume that each pod gets for "
    "itself, or once into a claim that all pods share.",
    "where pods run": None,
    "access": None,
}
_DEFAULT_MAX_REPLICAS = 4
_DNS = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_PART = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_MEBIBYTES_TEXT = re.compile(r"([1-9][0-9]{0,6})(Mi|Gi|Ti)")
_MEBIBYTES = {"Mi": 1, "Gi": 1024, "Ti": 1024**2}
# https://pkg.go.dev/github.com/distribution/reference: registry/name:tag@digest
_IMAGE_NAME = re.compile(
    r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?/)?"
    r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_LABEL = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
    r"=([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
)
MAX_NAME = 40  # a model's name, and what kind of thing it is, still follow


def _matching(pattern: re.Pattern[str], expected: str, longest: int, text: str) -> str:
    if len(text) > longest or not pattern.fullmatch(text):
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected {expected}")
    return text


_NAME = re.compile(rf"(?![0-9]){_DNS.pattern}")
_DOTTED = re.compile(rf"(?=.{{1,253}}$){_PART}(\.{_PART})*")
_ADDRESS = re.compile(r"[0-9A-Fa-f.:]{2,45}")
_OF_NAME = f"lower-case letters, digits and -, at most {MAX_NAME}, a letter first"
deployment_name = partial(_matching, _NAME, _OF_NAME, MAX_NAME)
dns_label = partial(_matching, _DNS, "lower-case letters, digits and -, at most 63", 63)
_OF_DOTTED = "a name of lower-case letters, digits, - and ."
dns_name, secret, class_name, claim = (
    partial(_matching, _DOTTED, _OF_DOTTED, 253) for _ in range(4)
)
image_name = partial(
    _matching, _IMAGE_NAME, "an image's name, such as my-registry/hf-triton:gpu", 255
)
label = partial(_matching, _LABEL, "a label such as pool=gpu", 253)
address = partial(_matching, _ADDRESS, "an IP address, such as 127.0.0.1 or 0.0.0.0", 45)


def folder(text: str) -> str:
    """Reads an absolute path in a container; drops a slash at its end."""
    if not re.fullmatch(r"/[A-Za-z0-9._/-]*", text) or ".." in text.split("/"):
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected an absolute path")
    return text.rstrip("/") or "/"


def size(text: str) -> int:
    """Reads mebibytes."""
    found = _MEBIBYTES_TEXT.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(
            f"got {text[:80]!r}, expected a whole number of Mi, Gi or Ti, such as 16Gi"
        )
    return int(found[1]) * _MEBIBYTES[found[2]]


def quantity(mib: int) -> str:
    """``8Gi``, or ``1536Mi``."""
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


def cores(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text) or float(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected cores, such as 4 or 0.5")
    return text


_count, _gpus = whole(1, 10_000), whole(0, 64)
_METAVARS: dict[Callable[[str], Any], str] = {
    _count: "N",
    _gpus: "N",
    size: "SIZE",
    cores: "CORES",
    image_name: "IMAGE",
    address: "ADDRESS",
    label: "KEY=VALUE",
    folder: "FOLDER",
    deployment_name: "NAME",
    secret: "SECRET",
    class_name: "CLASS",
    claim: "CLAIM",
}


def _flag(
    default: Any, about: str = "", read: Callable[[str], Any] = str, group: str = "", **more: Any
) -> Any:
    """A field whose flag has its name; ``about`` is without the default, ``more`` for argparse. Its
    ``group`` is a title of _GROUPS, "cluster" or "compose" where that target alone has it.
    """
    if isinstance(default, bool):
        more["action"] = "store_true"
    else:
        more |= {"type": read, "metavar": _METAVARS.get(read), "default": default}
        if default is not None:
            about = f"{about} (default: {default})" if about else f"default: {default}"
    return field(default=default, metadata={"group": group, "argument": {"help": about, **more}})


_compose, _cluster = partial(_flag, group="compose"), partial(_flag, group="cluster")
_scaling, _weights = partial(_flag, group="scaling"), partial(_flag, group="weights")
_placing, _access = partial(_flag, group="where pods run"), partial(_flag, group="access")


@dataclass(frozen=True, kw_only=True)
class Options:
    """A deployment as it was asked for; sizes in MiB."""

    target: str
    config: str
    output: str
    name: str = _flag("hf-triton", "name of the deployment", deployment_name)
    image: str | None = _flag(
        None,
        "what the Dockerfile builds (default: hf-triton:gpu, or :cpu without GPUs)",
        image_name,
    )
    device: str | None = _flag(
        None,
        "what models run on (default: gpu, unless all instance groups are KIND_CPU)",
        choices=("gpu", "cpu"),
    )
    gpus: int | None = _flag(
        None, "GPUs of each server (default: as many as its instance groups name, else 1)", _gpus
    )
    cpu: str = _flag("2", "", cores)
    memory: int | None = _flag(
        None,
        "of each server, such as 16Gi (default: 2Gi, 1Gi for each Python process, and the weights "
        "where models.lock has their size; caches of keys and values come on top)",
        size,
    )
    shm_size: int | None = _flag(
        None,
        "shared memory, through which tensors pass, such as 1Gi (default: by the number of Python "
        "processes, and the weights of models with several copies on a CPU)",
        size,
    )
    openai: bool = _flag(False, "also serve OpenAI's API, on port 9000")

    listen: str = _compose(
        "127.0.0.1", "address of this machine that ports are bound to; 0.0.0.0: all", address
    )
    prometheus_image: str = _compose("prom/prometheus:v3.5.0", "", image_name)
    grafana_image: str = _compose("grafana/grafana:12.1.0", "", image_name)

    namespace: str | None = _cluster(None, "default: that of kubectl's context", dns_label)
    per_model: bool = _cluster(
        False, "give each model its own servers; models that share a canary stay together"
    )
    gpus_per_node: int = _cluster(
        8,
        "GPUs that a node has; a model whose options.vllm ask for more (tensor_parallel_size x "
        "pipeline_parallel_size) is refused",
        _count,
    )

    replicas: int = _scaling(1, "", _count)
    max_replicas: int = _scaling(
        None,
        "scale up to N replicas by waiting and open requests, if prometheus-adapter runs with its "
        f"default rules; the same as --replicas: never scale (default: {_DEFAULT_MAX_REPLICAS})",
        _count,
    )
    waiting_target: int = _scaling(4, "scale up beyond N waiting requests in each server", _count)
    open_target: int = _scaling(
        32, "scale encoders up beyond N open requests in each server", _count
    )

    storage_size: int | None = _weights(
        None, "default: 20Gi, or by models.lock, which has the files' sizes", size
    )
    storage_class: str | None = _weights(None, "", class_name)
    shared_claim: bool = _weights(
        False, "one ReadWriteMany claim for all pods: a model is downloaded once"
    )
    hf_token_secret: str = _weights(
        "hf-token", "Secret with the Hub token as `token`; may be missing", secret
    )
    local_models: str | None = _weights(
        None,
        "folder in the image, or in --local-claim, that relative `model:` paths start from: "
        "folders of this machine are not copied",
        folder,
    )
    local_claim: str | None = _weights(
        None, "a PersistentVolumeClaim to mount at --local-models, read-only", claim
    )

    image_pull_secret: str | None = _placing(None, "", secret)
    node_selector: tuple[str, ...] = _placing(
        None, "a label that nodes must have; may be given more than once", label, action="append"
    )
    rollout: str = _placing(
        "surge",
        "surge: a new pod is ready before an old one ends, which needs room and GPUs for one more; "
        "replace: an old one ends first",
        choices=("surge", "replace"),
    )
    load_minutes: int = _placing(
        30, "how long weights may take to load before a rollout counts as failed", _count
    )

    host: str | None = _access(None, "make an Ingress for this host name (default: none)", dns_name)
    ingress_class: str | None = _access(None, "", class_name)
    tls_secret: str | None = _access(None, "the host's certificate", secret)
    network_policy: bool = _access(
        False, "allow requests from this namespace only; others may read metrics"
    )
    monitoring: str = _access(
        "files",
        "operator: a PodMonitor and a PrometheusRule, for the Prometheus operator; files: "
        "Prometheus' own configuration and rules",
        choices=("files", "operator"),
    )

    drain_s: int = 10
    # Triton has 65 s to end what is in flight, OpenAI's API 5 more; some for the rest.
    stop_s: int = 80

    @property
    def grace_s(self) -> int:
        return self.drain_s + self.stop_s

    @property
    def scales(self) -> bool:
        return self.max_replicas > self.replicas

    @property
    def max_unavailable(self) -> int:
        return int(self.rollout == "replace")

    @property
    def node_labels(self) -> list[list[str]]:
        return [label.split("=", 1) for label in self.node_selector]


def options_of(args: argparse.Namespace) -> Options:
    names = (one.name for one in fields(Options))
    found = {name: getattr(args, name) for name in names if hasattr(args, name)}
    options = Options(**{**found, "node_selector": tuple(found.get("node_selector") or ())})
    most = options.max_replicas or max(_DEFAULT_MAX_REPLICAS, options.replicas)
    return replace(options, max_replicas=most)


def add_targets(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    targets = parser.add_subparsers(dest="target", required=True, metavar="TARGET")
    for name, about in TARGETS.items():
        sentence = f"{about[0].upper()}{about[1:]}."
        target = targets.add_parser(name, help=about, description=sentence)
        _add_files(target, name)
        groups: dict[str, Any] = {"": target, name: target}
        if name != "compose":
            groups["cluster"] = target
            groups |= {one: target.add_argument_group(one, more) for one, more in _GROUPS.items()}
        for one in fields(Options):
            group = groups.get(one.metadata.get("group", "none"))
            if group is not None:
                group.add_argument(f"--{one.name.replace('_', '-')}", **one.metadata["argument"])


def _add_files(parser: argparse.ArgumentParser, target: str) -> None:
    parser.add_argument(
        "--config", default=argparse.SUPPRESS, metavar="FILE", help="default: models.yaml"
    )
    folder = f"deploy/{target}"
    parser.add_argument(
        "--output",
        default=folder,
        metavar="FOLDER",
        help=f"where the files go (default: {folder})",
    )
    parser.add_argument(
        "--diff", action="store_true", help="write nothing; show what would change, exit 1 if so"
    )
    parser.add_argument("--force", action="store_true", help="overwrite files edited by hand")
