"""Kubernetes: a Deployment, or for KServe an InferenceService whose predictor is our container, the
objects that belong to it, and a kustomization of all.

KServe in its Standard mode (RawDeployment until 0.15, a name that it still takes): no Knative, so
gRPC and metrics have ports too and loading may take its time. Knows which objects are wanted; what
stands in them is in the templates.

Pods get a models.yaml with paths that are right there. Files that it names come along under flat
names, as a ConfigMap holds them. GPUs are numbered from 0, as a container sees those it has been
given. The digest of a Python environment is the same there, so that an image which has it built is
found to have it.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from generator.deploy.rendering import dashboard, render, rule_groups, rules
from generator.deploy.server import Server, written_files
from generator.errors import SpecError, UsageError
from generator.models_yaml import models_lock
from generator.spec.model_spec import ModelSpec
from generator.spec.python_env import PythonEnv
from generator.yaml_file import nodes
from generator.yaml_file.editing import dumped
from generator.yaml_file.keys import plain
from generator.yaml_file.nodes import Node, Report

_HEADER = (
    "# Made by `hf-triton deploy`: change the models.yaml that it came from, and deploy again.\n"
)
_KEY = re.compile(r"(?!models\.(yaml|lock)$)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# User and password of an address; git's own user is none. The rest may be a variable of pip's.
_USER_INFO = re.compile(rb"://(?!git@)(?:[^/\s@:]*:)?([^/\s@]*)@")
_VARIABLE = re.compile(rb"\$\{[A-Z0-9_]+\}")
_ADVICE = (
    "is a folder on this machine, which a cluster does not have: use a model on the Hub, or put it "
    "into the image or a volume, and say with --local-models where relative paths start there"
)
Place: TypeAlias = tuple[int, int]  # line and column


def files(server: Server) -> dict[str, bytes]:
    """The objects, with the kustomization that names those that `kubectl apply -k` sends, and the
    files of the monitoring. Raises UsageError, and SpecError for models that pods would not find.
    """
    asked = server.asked
    is_kserve, has_operator = asked.target == "kserve", asked.monitoring == "operator"
    if is_kserve and asked.host:
        raise UsageError("--host: KServe makes an InferenceService's Ingress itself; leave it out")
    contents = files_of(server)
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


def files_of(server: Server) -> dict[str, str]:
    """The server's models.yaml, and what it needs beside it. Raises UsageError for a file that is
    not UTF-8, since a ConfigMap holds texts, and SpecError for what pods would not find.
    """
    refuse_local(server)
    config = Path(server.asked.config)
    tree = plain(nodes.read(config), dict(_changes(server)))
    files = {"models.yaml": f"{_HEADER}{dumped(tree)}".encode()}
    for spec in server.specs:
        if spec.hooks is not None:
            files[_hooks_name(spec)] = spec.hooks.content
        for path in spec.python_env.files if spec.python_env else ():
            files[path.name] = path.read_bytes()
    if server.hub_parts and (lock := models_lock.lock_path(config)).exists():
        files["models.lock"] = lock.read_bytes()
    try:
        return {name: content.decode() for name, content in sorted(files.items())}
    except UnicodeDecodeError as error:
        shown = error.object[:40]
        raise UsageError(f"a file that begins with {shown!r} is not UTF-8; convert it") from None


def _changes(server: Server) -> Iterator[tuple[Place, Any]]:
    """The values to replace, by their place: with a model, in an arm, or in the defaults."""
    gpus = {gpu: index for index, gpu in enumerate(server.gpu_ids)}
    for spec in server.specs:
        places = spec.places
        for place, _ in spec.local_folders if server.asked.local_models else ():
            path = posixpath.join(str(server.asked.local_models), str(place.value))
            yield _place(place), posixpath.normpath(path)
        if spec.hooks is not None:
            yield _place(places["hooks"]), _hooks_name(spec)
        for node in written_files(spec):
            yield _place(node), Path(str(node.value)).name
        if any(group.gpus for group in spec.instance_groups):
            groups = plain(places["instance_group"])
            for group in groups:
                if group.get("gpus"):
                    group["gpus"] = [gpus[gpu] for gpu in group["gpus"]]
            yield _place(places["instance_group"]), groups


def _place(node: Node) -> Place:
    return node.line, node.column


def _hooks_name(spec: ModelSpec) -> str:
    """Named by the model: two models may have hooks files of one name in two folders."""
    return f"{spec.name}.py"


def refuse_local(server: Server) -> None:
    """Raises SpecError for every local model or environment that pods would not find."""
    asked, report, names = server.asked, Report(), dict[str, Path]()
    for spec in server.specs:
        for place, _ in spec.local_folders:
            if asked.local_models is None:
                report.add(place, f"'{place.value}' {_ADVICE}")
            elif str(place.value).startswith("~"):
                message = f"'{place.value}' starts at a home folder, which pods don't have"
                report.add(place, message)
        for message in _environment_reasons(spec.python_env, names) if spec.python_env else ():
            report.add(spec.places["python_env"], message)
    if report.problems:
        raise SpecError(asked.config, report.problems)


def _environment_reasons(env: PythonEnv, names: dict[str, Path]) -> Iterator[str]:
    if env.folder is not None and not env.written.startswith("/"):
        yield (
            f"'{env.written}' is a folder on this machine, which a cluster does not have: name a "
            "requirements file, or the absolute path of an environment in the image"
        )
    for path in env.files:
        if path.suffix in (".whl", ".gz", ".zip"):
            yield f"{path.name} is a package on this machine: build the environment into the image"
        elif path.parent != env.files[0].parent or not _KEY.fullmatch(path.name):
            yield f"{path} can't lie beside {env.files[0].name} in a ConfigMap: use one folder"
        elif names.setdefault(path.name, path) != path:
            yield f"{path} has the name of {names[path.name]}: give them different ones"
        elif any(_VARIABLE.sub(b"", word) for word in _USER_INFO.findall(path.read_bytes())):
            yield f"{path.name} has a password, which no ConfigMap may hold: use ${{NAME}}"
