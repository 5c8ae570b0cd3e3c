"""An artifact of an OCI registry as a file system of fsspec's: each of its layers that carries a
name is a file, as ORAS and ModelPack push them. The oras package asks, with the credentials that
docker's configuration has.

A registry on this machine (localhost, 127.0.0.1) is asked by plain HTTP, any other by HTTPS.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import oras.provider
import oras.utils
import requests
from fsspec import AbstractFileSystem

from generator.errors import FetchError

_NAMES = ("org.opencontainers.image.title", "org.cncf.model.filepath")
_PACKED = "io.deis.oras.content.unpack"
_SHA256 = re.compile("sha256:([0-9a-f]{64})")
# HOST/REPOSITORY:TAG, or with a digest.
_ARTIFACT = r"[^/]+(?:/[^/:@]+)+(?::[^/@]+|@sha256:[0-9a-f]{64})"
_TIMEOUT_S = 60.0
_HERE = ("localhost", "127.0.0.1")
_REFUSED = (401, 403)

File = Mapping[str, Any]

logging.getLogger("oras.logger").setLevel(logging.CRITICAL)  # errors are raised, too


def _docker_config(exists: bool = True) -> str | None:
    """Where docker keeps its logins; oras does not look at DOCKER_CONFIG."""
    folder = os.environ.get("DOCKER_CONFIG") or Path("~/.docker").expanduser()
    path = Path(folder, "config.json")
    return str(path) if path.is_file() or not exists else None


oras.utils.find_docker_config = _docker_config


class _Registry(oras.provider.Registry):  # type: ignore[misc]  # it has no types
    """One host's. A token that has expired is asked for again, which oras leaves to its caller."""

    # Without oras' own attempts, minutes apart: who calls tries again.
    _request = oras.provider.Registry.do_request.__wrapped__

    def __init__(self, host: str) -> None:
        is_here = host.partition(":")[0] in _HERE
        url = f"{'http' if is_here else 'https'}://{host}/v2/"
        asked = requests.get(url, timeout=_TIMEOUT_S).headers.get("WWW-Authenticate", "")
        kind = "basic" if asked.lower().startswith("basic") else "token"
        super().__init__(host, insecure=is_here, auth_backend=kind)
        if kind == "basic":
            self.auth._basic_auth = ""  # noqa: SLF001, until docker's configuration has one
        send = self.session.request
        self.session.request = lambda *args, **values: send(
            *args, **{"timeout": _TIMEOUT_S, **values}
        )

    def do_request(self, url: str, *args: Any, **values: Any) -> requests.Response:
        """Raises PermissionError, FileNotFoundError, OSError."""
        answer: requests.Response = self._request(url, *args, **values)
        if answer.status_code in _REFUSED and getattr(self.auth, "token", None):
            self.auth.token = None
            answer = self._request(url, *args, **values)
        if answer.status_code in _REFUSED:
            raise PermissionError(answer.status_code)
        if answer.status_code == 404:
            raise FileNotFoundError(url)
        answer.raise_for_status()
        return answer


class OciFileSystem(AbstractFileSystem):  # type: ignore[misc]  # it has no types
    """Artifacts by ``HOST/REPOSITORY:TAG``, with their files below."""

    protocol = "oci"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._registries: dict[str, _Registry] = {}
        self._artifacts: dict[str, dict[str, File]] = {}

    def find(self, root: str, **_: Any) -> dict[str, File]:
        files = _files(self._registry(root).get_manifest(root))
        self._artifacts[root] = {f"{root}/{name}": file for name, file in files.items()}
        return self._artifacts[root]

    def info(self, place: str, **_: Any) -> File:
        found = self.find(_root(place)).get(place)
        if found is None:
            raise FileNotFoundError(place)
        return found

    def cat_file(self, place: str, start: int, end: int, **_: Any) -> bytes:
        root = _root(place)
        registry, digest = self._registry(root), f"sha256:{self._artifacts[root][place]['sha256']}"
        url = f"{registry.prefix}://{registry.get_container(root).get_blob_url(digest)}"
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        return bytes(registry.do_request(url, "GET", headers=headers).content)

    def _registry(self, root: str) -> _Registry:
        """One for each artifact: tokens are for one repository."""
        if root not in self._registries:
            self._registries[root] = _Registry(root.partition("/")[0])
        return self._registries[root]


def _root(place: str) -> str:
    """The artifact that a file is of."""
    return re.sub(f"^({_ARTIFACT}).*", r"\1", place)


def _files(manifest: Any) -> dict[str, File]:
    """The files that an artifact's layers are, by name. Raises FetchError."""
    found: dict[str, File] = {}
    try:
        for layer in manifest["layers"]:
            notes = layer.get("annotations") or {}
            name = next((notes[key] for key in _NAMES if notes.get(key)), "").removeprefix("./")
            if name and notes.get(_PACKED) == "true":
                raise FetchError(f"{name} is a packed folder: push its files one by one")
            sha256 = _SHA256.fullmatch(layer["digest"])
            if name and sha256:
                found[name] = {"type": "file", "size": int(layer["size"]), "sha256": sha256[1]}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FetchError("what the registry has there is no artifact with layers") from None
    if not found:
        raise FetchError(f"none of its layers is a file with a name ({_NAMES[0]})")
    return found
