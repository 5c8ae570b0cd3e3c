"""Debian's prometheus and promtool: found on PATH, or unpacked into the user's cache without root.

Neither is on PyPI. Where they can't be had, the tests that need them are skipped, and say why.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.triton import eventually


@functools.cache
def program(name: str) -> str:
    """The path of prometheus or promtool; skips the test where there is none."""
    if found := shutil.which(name):
        return found
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    unpacked = cache / "hf-triton" / "debian-prometheus" / "usr" / "bin" / name
    if not unpacked.is_file():
        folder = unpacked.parents[2]
        folder.mkdir(parents=True, exist_ok=True)
        script = "apt-get download prometheus && dpkg -x prometheus_*.deb ."
        done = subprocess.run(script, shell=True, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no {name}: not on PATH, and {done.stderr.strip()}")
    return str(unpacked)


def promtool(*arguments: str, folder: Path) -> str:
    """Returns promtool's output; fails the test if it found a mistake."""
    command = [program("promtool"), *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


class Prometheus:
    """A running Prometheus that is asked by HTTP."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **parameters: str) -> Any:
        """The ``data`` of an answer of its API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        """The samples of an instant query."""
        found: list[Any] = self.ask("query", query=expression)["result"]
        return found


@contextlib.contextmanager
def running(config: Path, port: int) -> Iterator[Prometheus]:
    """A Prometheus with this configuration, its database in a folder beside it."""
    command = [
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={config.parent / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (config.parent / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        found = Prometheus(port)
        assert eventually(lambda: _is_ready(found), 60), (
            config.parent / "prometheus.log"
        ).read_text()
        yield found
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(prometheus: Prometheus) -> bool:
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"{prometheus.url}/-/ready", timeout=2) as answer,
    ):
        return bool(answer.status == 200)
    return False
