"""What ``hf-triton deploy`` can be asked for: each field of Options is a flag, and what templates
print. What values mean together is for targets.py and servers.py.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, NamedTuple

from generator.flag_values import whole

TARGETS = {
    "compose": "Triton, Prometheus and Grafana with our dashboard and alert rules",
    "kubernetes": "a Deployment for all models, or one for each, ready for `kubectl apply -k`",
    "kserve": "an InferenceService for all models, or one for each, for `kubectl apply -k`",
}
_COMPOSE, _CLUSTER = ("compose",), ("kubernetes", "kserve")
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
_GROUPS = {
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
dns_name = partial(_matching, _DOTTED, "a name of lower-case letters, digits, - and .", 253)
image = partial(_matching, _IMAGE_NAME, "an image's name, such as my-registry/hf-triton:gpu", 255)
label = partial(_matching, _LABEL, "a label such as pool=gpu", 253)
address = partial(_matching, _ADDRESS, "an IP address, such as 127.0.0.1 or 0.0.0.0", 45)


def folder(text: str) -> str:
    """An absolute path in a container, without a slash at its end."""
    if not re.fullmatch(r"/[A-Za-z0-9._/-]*", text) or ".." in text.split("/"):
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected an absolute path")
    return text.rstrip("/") or "/"


def size(text: str) -> int:
    """Mebibytes."""
    found = _MEBIBYTES_TEXT.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(
            f"got {text[:80]!r}, expected a whole number of Mi, Gi or Ti, such as 16Gi"
        )
    return int(found[1]) * _MEBIBYTES[found[2]]


def cores(text: str) -> str:
    """Cores, in parts too; as it was written."""
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text) or float(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected cores, such as 4 or 0.5")
    return text


class _Kind(NamedTuple):
    """How a flag's text is read, and what stands for it in the help."""

    read: Callable[[str], Any]
    metavar: str | None = None


class _Place(NamedTuple):
    """The targets that have a flag, and its group in their help."""

    targets: tuple[str, ...]
    group: str = ""


_TEXT = _Kind(str)
_COUNT, _SIZE = _Kind(whole(1, 10_000), "N"), _Kind(size, "SIZE")
_IMAGE, _SECRET = _Kind(image, "IMAGE"), _Kind(dns_name, "SECRET")
_CLASS = _Kind(dns_name, "CLASS")
_EVERYWHERE, _COMPOSED, _CLUSTERED = _Place(tuple(TARGETS)), _Place(_COMPOSE), _Place(_CLUSTER)
_SCALING, _WEIGHTS = _Place(_CLUSTER, "scaling"), _Place(_CLUSTER, "weights")
_PLACING, _ACCESS = _Place(_CLUSTER, "where pods run"), _Place(_CLUSTER, "access")


def _flag(
    default: Any,
    about: str = "",
    kind: _Kind = _TEXT,
    place: _Place = _EVERYWHERE,
    **more: Any,
) -> Any:
    """A field whose flag has its name; ``about`` is without the default, ``more`` for argparse."""
    if isinstance(default, bool):
        more["action"] = "store_true"
    else:
        more |= {"type": kind.read, "metavar": kind.metavar, "default": default}
        if default is not None:
            about = f"{about} (default: {default})" if about else f"default: {default}"
    return field(default=default, metadata={"place": place, "argument": {"help": about, **more}})


@dataclass(frozen=True, kw_only=True)
class Options:
    """A deployment as it was asked for; sizes in MiB."""

    target: str
    config: str
    output: str
    name: str = _flag("hf-triton", "name of the deployment", _Kind(deployment_name, "NAME"))
    image: str | None = _flag(
        None, "what the Dockerfile builds (default: hf-triton:gpu, or :cpu without GPUs)", _IMAGE
    )
    device: str | None = _flag(
        *(None, "what models run on (default: gpu, unless all instance groups are KIND_CPU)"),
        choices=("gpu", "cpu"),
    )
    gpus: int | None = _flag(
        *(None, "GPUs of each server (default: as many as its instance groups name, else 1)"),
        _Kind(whole(0, 64), "N"),
    )
    cpu: str = _flag("2", "", _Kind(cores, "CORES"))
    memory: int | None = _flag(
        None,
        "of each server, such as 16Gi (default: 2Gi, 1Gi for each Python process, and the weights "
        "where models.lock has their size; caches of keys and values come on top)",
        _SIZE,
    )
    shm_size: int | None = _flag(
        None,
        "shared memory, through which tensors pass, such as 1Gi (default: by the number of Python "
        "processes, and the weights of models with several copies on a CPU)",
        _SIZE,
    )
    openai: bool = _flag(False, "also serve OpenAI's API, on port 9000")

    listen: str = _flag(
        *("127.0.0.1", "address of this machine that ports are bound to; 0.0.0.0: all"),
        *(_Kind(address, "ADDRESS"), _COMPOSED),
    )
    prometheus_image: str = _flag("prom/prometheus:v3.5.0", "", _IMAGE, _COMPOSED)
    grafana_image: str = _flag("grafana/grafana:12.1.0", "", _IMAGE, _COMPOSED)

    namespace: str | None = _flag(
        None, "default: that of kubectl's context", _Kind(dns_label), _CLUSTERED
    )
    per_model: bool = _flag(
        *(False, "give each model its own servers; models that share a canary stay together"),
        place=_CLUSTERED,
    )
    gpus_per_node: int = _flag(
        8,
        "GPUs that a node has; a model whose options.vllm ask for more (tensor_parallel_size x "
        "pipeline_parallel_size) is refused",
        *(_COUNT, _CLUSTERED),
    )

    replicas: int = _flag(1, "", _COUNT, _SCALING)
    max_replicas: int = _flag(
        None,
        "scale up to N replicas by waiting and open requests, if prometheus-adapter runs with its "
        f"default rules; the same as --replicas: never scale (default: {_DEFAULT_MAX_REPLICAS})",
        *(_COUNT, _SCALING),
    )
    waiting_target: int = _flag(
        4, "scale up beyond N waiting requests in each server", _COUNT, _SCALING
    )
    open_target: int = _flag(
        32, "scale encoders up beyond N open requests in each server", _COUNT, _SCALING
    )

    storage_size: int | None = _flag(
        None, "default: 20Gi, or by models.lock, which has the files' sizes", _SIZE, _WEIGHTS
    )
    storage_class: str | None = _flag(None, "", _CLASS, _WEIGHTS)
    shared_claim: bool = _flag(
        False, "one ReadWriteMany claim for all pods: a model is downloaded once", place=_WEIGHTS
    )
    hf_token_secret: str = _flag(
        *("hf-token", "Secret with the Hub token as `token`; may be missing", _SECRET, _WEIGHTS)
    )
    local_models: str | None = _flag(
        None,
        "folder in the image, or in --local-claim, that relative `model:` paths start from: "
        "folders of this machine are not copied",
        *(_Kind(folder, "FOLDER"), _WEIGHTS),
    )
    local_claim: str | None = _flag(
        *(None, "a PersistentVolumeClaim to mount at --local-models, read-only"),
        *(_Kind(dns_name, "CLAIM"), _WEIGHTS),
    )

    image_pull_secret: str | None = _flag(None, "", _SECRET, _PLACING)
    node_selector: tuple[str, ...] = _flag(
        *(None, "a label that nodes must have; may be given more than once"),
        *(_Kind(label, "KEY=VALUE"), _PLACING),
        action="append",
    )
    rollout: str = _flag(
        "surge",
        "surge: a new pod is ready before an old one ends, which needs room and GPUs for one more; "
        "replace: an old one ends first",
        place=_PLACING,
        choices=("surge", "replace"),
    )
    load_minutes: int = _flag(
        *(30, "how long weights may take to load before a rollout counts as failed"),
        *(_COUNT, _PLACING),
    )

    host: str | None = _flag(
        *(None, "make an Ingress for this host name (default: none)"),
        *(_Kind(dns_name), _ACCESS),
    )
    ingress_class: str | None = _flag(None, "", _CLASS, _ACCESS)
    tls_secret: str | None = _flag(None, "the host's certificate", _SECRET, _ACCESS)
    network_policy: bool = _flag(
        False, "allow requests from this namespace only; others may read metrics", place=_ACCESS
    )
    monitoring: str = _flag(
        "files",
        "operator: a PodMonitor and a PrometheusRule, for the Prometheus operator; files: "
        "Prometheus' own configuration and rules",
        place=_ACCESS,
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
    """What a command line asks for."""
    names = (one.name for one in fields(Options))
    found = {name: getattr(args, name) for name in names if hasattr(args, name)}
    options = Options(**{**found, "node_selector": tuple(found.get("node_selector") or ())})
    most = options.max_replicas or max(_DEFAULT_MAX_REPLICAS, options.replicas)
    return replace(options, max_replicas=most)


def add_targets(parser: argparse.ArgumentParser) -> None:
    """Adds compose, kubernetes and kserve."""
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    targets = parser.add_subparsers(dest="target", required=True, metavar="TARGET")
    for name, about in TARGETS.items():
        sentence = f"{about[0].upper()}{about[1:]}."
        target = targets.add_parser(name, help=about, description=sentence)
        _add_files(target, name)
        groups: dict[str, Any] = {"": target}
        for title, description in _GROUPS.items() if name in _CLUSTER else ():
            groups[title] = target.add_argument_group(title, description)
        for one in fields(Options):
            place = one.metadata.get("place", _Place(()))
            if name in place.targets:
                flag = f"--{one.name.replace('_', '-')}"
                groups[place.group].add_argument(flag, **one.metadata["argument"])


def _add_files(parser: argparse.ArgumentParser, target: str) -> None:
    parser.add_argument(
        "--config", default=argparse.SUPPRESS, metavar="FILE", help="default: models.yaml"
    )
    folder = f"deploy/{target}"
    parser.add_argument(
        *("--output",),
        default=folder,
        metavar="FOLDER",
        help=f"where the files go (default: {folder})",
    )
    parser.add_argument(
        "--diff", action="store_true", help="write nothing; show what would change, exit 1 if so"
    )
    parser.add_argument("--force", action="store_true", help="overwrite files edited by hand")
