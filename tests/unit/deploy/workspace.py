"""A folder with models of every kind, and what ``deploy`` made of them, read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MODELS = """\
# A comment of the user's.
defaults:
  dtype: bfloat16
models:
  - name: Chat_7B
    task: text-generation
    model: org/chat
    instance_group: [{kind: KIND_GPU, gpus: [2, 3]}]
  - name: embedding
    task: feature-extraction
    model: org/embedding
    hooks: hooks/mine.py
    instance_group: [{kind: KIND_CPU, count: 2}]
  - name: picture
    task: pipeline
    model: org/picture
    options: {pipeline: image-classification}
"""
LOCAL = """\
models:
  - name: demo
    task: text-generation
    model: ./weights/demo
"""
HOOKS = "def preprocess(request):\n    return request\n"
LOCK = {
    "version": 1,
    "models": {
        f"org/{name}": {
            "main": {
                "commit": "0123456789" * 4,
                "files": {"model.safetensors": {"size": size * 2**30, "sha256": "ab" * 32}},
            }
        }
        for name, size in (("chat", 14), ("embedding", 1), ("picture", 2))
    },
}


@dataclass(frozen=True)
class Rendered:
    """The command's output, and the files of its folder."""

    code: int
    out: str
    err: str
    files: dict[str, str]

    def yaml(self, path: str) -> Any:
        """The only document of a file."""
        return read_yaml(self.files[path])

    def objects(self) -> list[dict[str, Any]]:
        """The kustomization's objects, in its order."""
        return [self.yaml(path) for path in self.yaml("kustomization.yaml")["resources"]]

    def object(self, kind: str, name: str = "hf-triton") -> dict[str, Any]:
        """The only object of a kind and name."""
        (found,) = [
            entry
            for entry in self.objects()
            if entry["kind"] == kind and entry["metadata"]["name"] == name
        ]
        return found

    def pod(self, name: str = "hf-triton") -> dict[str, Any]:
        """The pod of a Deployment."""
        spec: dict[str, Any] = self.object("Deployment", name)["spec"]["template"]["spec"]
        return spec

    def server(self, name: str = "hf-triton") -> dict[str, Any]:
        """The container that serves."""
        container: dict[str, Any] = self.pod(name)["containers"][0]
        return container


def read_yaml(text: str) -> Any:
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def write_workspace(folder: Path) -> None:
    (folder / "models.yaml").write_text(MODELS)
    (folder / "local.yaml").write_text(LOCAL)
    (folder / "hooks").mkdir()
    (folder / "hooks/mine.py").write_text(HOOKS)
    (folder / "weights/demo").mkdir(parents=True)
    (folder / "weights/demo/config.json").write_text("{}")


def keep_models(folder: Path, *names: str) -> None:
    """Leaves only these models in models.yaml."""
    tree = read_yaml(MODELS)
    models = [model for model in tree["models"] if model["name"] in names]
    (folder / "models.yaml").write_text(json.dumps({**tree, "models": models}))


def write_lock(folder: Path) -> None:
    (folder / "models.lock").write_text(json.dumps(LOCK))


def read_folder(folder: Path) -> dict[str, str]:
    return dict(_read(folder)) if folder.is_dir() else {}


def _read(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith(".hf-triton"):
            yield name, path.read_text()
