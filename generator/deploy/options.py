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
MAX_NAME = 40  # a model's name, and what kind of thing it is, still follow
_MEBIBYTES = {"Mi": 1, "Gi": 1024, "Ti": 1024**2}


@dataclass(frozen=True)
class _Reader:
    """Reads a flag's value: a text that matches a pattern, as ``change`` makes it."""

    metavar: str
    pattern: str
    expected: str
    longest: int = 253
    change: Callable[[str], Any] = str

    def __call__(self, text: str) -> Any:
        if len(text) > self.longest or not re.fullmatch(self.pattern, text):
            raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected {self.expected}")
        return self.change(text)


_DNS = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_PART = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_LOWER = r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*"
_WORD = "[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_name = _Reader(
    "NAME",
    f"(?![0-9]){_DNS}",
    f"lower-case letters, digits and -, at most {MAX_NAME}, a letter first",
    MAX_NAME,
)
_namespace = _Reader("NAMESPACE", _DNS, "lower-case letters, digits and -, at most 63", 63)
_host = _Reader("HOST", rf"{_PART}(\.{_PART})*", "a name of lower-case letters, digits, - and .")
_secret, _class, _claim = (replace(_host, metavar=one) for one in ("SECRET", "CLASS", "CLAIM"))
_image = _Reader(
    "IMAGE",
    # https://pkg.go.dev/github.com/distribution/reference: registry/name:tag@digest
    rf"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{{1,5}})?/)?{_LOWER}(/{_LOWER})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?",
    "an image's name, such as my-registry/hf-triton:gpu",
    255,
)
_label = _Reader(
    "KEY=VALUE", f"([A-Za-z0-9][A-Za-z0-9._-]*/)?{_WORD}=({_WORD})?", "a label such as pool=gpu"
)
_address = _Reader(
    "ADDRESS", "[0-9A-Fa-f.:]{2,}", "an IP address, such as 127.0.0.1 or 0.0.0.0", 45
)
_folder = _Reader(  # in a container
    "FOLDER",
    r"(?!.*/\.\.(/|$))/[A-Za-z0-9._/-]*",
    "an absolute path",
    4096,
    lambda text: text.rstrip("/") or "/",
)
_size = _Reader(  # in mebibytes
    "SIZE",
    "[1-9][0-9]{0,6}(Mi|Gi|Ti)",
    "a whole number of Mi, Gi or Ti, such as 16Gi",
    change=lambda text: int(text[:-2]) * _MEBIBYTES[text[-2:]],
)
_cores = _Reader("CORES", r"(?=.*[1-9])[0-9]{1,4}(\.[0-9]{1,3})?", "cores, such as 4 or 0.5")
_count, _gpus = whole(1, 10_000), whole(0, 64)


def quantity(mib: int) -> str:
    """``8Gi``, or ``1536Mi``."""
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


def _flag(
    default: Any, about: str = "", read: Callable[[str], Any] = str, group: str = "", **more: Any
) -> Any:
    """A field whose flag has its name; ``about`` is without the default, ``more`` for argparse. Its
    ``group`` is a title of _GROUPS, "cluster" or "compose" where that target alone has it.
    """
    if isinstance(default, bool):
        more["action"] = "store_true"
    else:
        metavar = getattr(read, "metavar", None if read is str else "N")
        more |= {"type": read, "metavar": metavar, "default": default}
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
    name: str = _flag("hf-triton", "name of the deployment", _name)
    image: str | None = _flag(
        None,
        "what the Dockerfile builds (default: hf-triton:gpu, or :cpu without GPUs)",
        _image,
    )
    device: str | None = _flag(
        None,
        "what models run on (default: gpu, unless all instance groups are KIND_CPU)",
        choices=("gpu", "cpu"),
    )
    gpus: int | None = _flag(
        None, "GPUs of each server (default: as many as its instance groups name, else 1)", _gpus
    )
    cpu: str = _flag("2", "", _cores)
    memory: int | None = _flag(
        None,
        "of each server, such as 16Gi (default: 2Gi, 1Gi for each Python process, and the weights "
        "where models.lock has their size; caches of keys and values come on top)",
        _size,
    )
    shm_size: int | None = _flag(
        None,
        "shared memory, through which tensors pass, such as 1Gi (default: by the number of Python "
        "processes, and the weights of models with several copies on a CPU)",
        _size,
    )
    openai: bool = _flag(False, "also serve OpenAI's API, on port 9000")

    listen: str = _compose(
        "127.0.0.1", "address of this machine that ports are bound to; 0.0.0.0: all", _address
    )
    prometheus_image: str = _compose("prom/prometheus:v3.5.0", "", _image)
    grafana_image: str = _compose("grafana/grafana:12.1.0", "", _image)

    namespace: str | None = _cluster(None, "default: that of kubectl's context", _namespace)
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
        None, "default: 20Gi, or by models.lock, which has the files' sizes", _size
    )
    storage_class: str | None = _weights(None, "", _class)
    shared_claim: bool = _weights(
        False, "one ReadWriteMany claim for all pods: a model is downloaded once"
    )
    hf_token_secret: str = _weights(
        "hf-token", "Secret with the Hub token as `token`; may be missing", _secret
    )
    local_models: str | None = _weights(
        None,
        "folder in the image, or in --local-claim, that relative `model:` paths start from: "
        "folders of this machine are not copied",
        _folder,
    )
    local_claim: str | None = _weights(
        None, "a PersistentVolumeClaim to mount at --local-models, read-only", _claim
    )

    image_pull_secret: str | None = _placing(None, "", _secret)
    node_selector: tuple[str, ...] = _placing(
        None, "a label that nodes must have; may be given more than once", _label, action="append"
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

    host: str | None = _access(None, "make an Ingress for this host name (default: none)", _host)
    ingress_class: str | None = _access(None, "", _class)
    tls_secret: str | None = _access(None, "the host's certificate", _secret)
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
