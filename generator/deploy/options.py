"""The options of ``hf-triton deploy``: each field of Options is a flag, and a value for templates.

What values mean for the models is for server.py.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from generator.errors import UsageError
from generator.flag_values import whole

_DEFAULT_MAX_REPLICAS = 4
_MEBIBYTES = {"Mi": 1, "Gi": 1024, "Ti": 1024**2}


def _text(
    pattern: str, expected: str, longest: int, change: Callable[[str], Any] = str
) -> Callable[[str], Any]:
    """A reader of a flag's value: a text that matches, as ``change`` makes it."""

    def read(text: str) -> Any:
        if len(text) > longest or not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected {expected}")
        return change(text)

    return read


_object = _text(  # of Kubernetes, or a host
    "[a-z0-9]([a-z0-9.-]*[a-z0-9])?", "a name of lower-case letters, digits, - and .", 253
)
_name = _text(
    "[a-z]([a-z0-9-]*[a-z0-9])?",
    "lower-case letters, digits and -, at most 32, a letter first",
    32,
)
_folder = _text(  # in a container
    r"(?!.*/\.\.(/|$))/.*", "an absolute path", 4096, lambda text: text.rstrip("/") or "/"
)
_size = _text(  # in mebibytes
    "[1-9][0-9]{0,6}(Mi|Gi|Ti)",
    "a whole number of Mi, Gi or Ti, such as 16Gi",
    9,
    lambda text: int(text[:-2]) * _MEBIBYTES[text[-2:]],
)
_cores = _text(r"(?=.*[1-9])[0-9]{1,4}(\.[0-9]{1,3})?", "cores, such as 4 or 0.5", 8)
_count, _gpus = whole(1, 10_000), whole(1, 64)


def quantity(mib: int) -> str:
    """``8Gi``, or ``1536Mi``."""
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


def _flag(
    default: Any, about: str = "", read: Callable[[str], Any] = str, group: str = "", **more: Any
) -> Any:
    """A field whose flag has its name; ``about`` is without the default, ``more`` for argparse. Its
    ``group`` is "cluster" or "compose" where such a target alone has it.
    """
    if isinstance(default, bool):
        more["action"] = "store_true"
    else:
        metavar = "N" if read in (_count, _gpus) else None
        more |= {"type": read, "metavar": metavar, "default": default}
        if default is not None:
            about = f"{about} (default: {default})" if about else f"default: {default}"
    return field(default=default, metadata={"group": group, "argument": {"help": about, **more}})


_compose, _cluster = partial(_flag, group="compose"), partial(_flag, group="cluster")


@dataclass(frozen=True, kw_only=True)
class Options:
    """A deployment as it was asked for; sizes in MiB."""

    target: str
    config: str
    output: str
    name: str = _flag("hf-triton", "name of the deployment", _name)
    image: str | None = _flag(
        None,
        "image that the Dockerfile builds (default: hf-triton:gpu, or :cpu without GPUs)",
    )
    device: str | None = _flag(
        None,
        "device that models run on (default: gpu, unless all instance groups are KIND_CPU)",
        choices=("gpu", "cpu"),
    )
    gpus: int | None = _flag(
        None, "GPUs of each server (default: as many as instance groups name, else 1)", _gpus
    )
    cpu: str = _flag("2", "cores of each server", _cores)
    memory: int | None = _flag(
        None,
        "memory of each server, such as 16Gi (default: 2Gi, 1Gi for each Python process, and the "
        "weights if models.lock has their size; caches of keys and values come on top)",
        _size,
    )
    openai: bool = _flag(False, "also serve OpenAI's API, on port 9000")

    listen: str = _compose(
        "127.0.0.1", "address of this machine that ports are bound to; 0.0.0.0: all"
    )

    namespace: str | None = _cluster(None, "default: the namespace of kubectl's context", _object)

    replicas: int = _cluster(1, "", _count)
    max_replicas: int = _cluster(
        None,
        "scale up to N replicas by waiting and open requests, if prometheus-adapter runs with its "
        f"default rules; the same as --replicas: never scale (default: {_DEFAULT_MAX_REPLICAS})",
        _count,
    )

    storage_size: int | None = _cluster(
        None, "disk for weights (default: 20Gi, or the sum of the files in models.lock)", _size
    )
    storage_class: str | None = _cluster(None, "", _object)
    shared_claim: bool = _cluster(
        False, "one ReadWriteMany claim for all pods: a model is downloaded once"
    )
    hf_token_secret: str = _cluster(
        "hf-token", "Secret with the Hub token as `token`; may be missing", _object
    )
    local_models: str | None = _cluster(
        None,
        "folder in the image that relative `model:` paths start from: folders of this machine are "
        "not copied",
        _folder,
    )

    host: str | None = _cluster(None, "make an Ingress for this host name (default: none)", _object)
    tls_secret: str | None = _cluster(None, "Secret with the host's certificate", _object)
    monitoring: str = _cluster(
        "files",
        "operator: a PodMonitor and a PrometheusRule, for the Prometheus operator; files: "
        "Prometheus' own configuration and rules",
        choices=("files", "operator"),
    )

    @property
    def scales(self) -> bool:
        return self.max_replicas > self.replicas


def options_of(args: argparse.Namespace) -> Options:
    """Raises UsageError for flags that would be ignored."""
    names = (one.name for one in fields(Options))
    found = {name: getattr(args, name) for name in names if hasattr(args, name)}
    options = Options(**found)
    if options.tls_secret is not None and options.host is None:
        raise UsageError("--tls-secret needs --host")
    replicas = options.replicas
    most = options.max_replicas or max(_DEFAULT_MAX_REPLICAS, replicas)
    if most < replicas:
        got = f"got --max-replicas {most} with --replicas {replicas}"
        raise UsageError(f"{got}, expected at least as many")
    return replace(options, max_replicas=most)
