"""The tests' tritonserver: the wheel's, or another that HF_TRITON_TEST_SERVER names."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

import pytest

from hf_triton.tritonserver import binary
from hf_triton.tritonserver.process import TritonServer
from tests.support.triton import free_ports, get

VARIABLE = "HF_TRITON_TEST_SERVER"


def put_on_path() -> None:
    """Puts the folder of the server that is asked for first on PATH, where hf-triton looks."""
    asked = os.environ.get(VARIABLE, "")
    if not asked:
        return
    program = Path(asked).absolute()
    if program.name != "tritonserver" or not os.access(program, os.X_OK):
        expected = "expected a program with the name tritonserver"
        raise pytest.UsageError(f"{VARIABLE}: got {asked!r}, {expected}")
    os.environ["PATH"] = os.pathsep.join([str(program.parent), os.environ.get("PATH", "")])


@functools.cache
def options() -> str:
    """The server's help text."""
    found = binary.find()
    command = [*found.command, "--help"]
    done = subprocess.run(command, env=found.full_environment(), capture_output=True, text=True)
    return done.stdout + done.stderr


def skip_without_tracing() -> None:
    """Skips the test on a server that was built without tracing."""
    if "--trace-config" not in options():
        pytest.skip("this tritonserver was built without tracing")


def description() -> str:
    """The server's version and what it ran with, asked of one that is started for that."""
    with (
        tempfile.TemporaryDirectory() as folder,
        TritonServer(Path(folder), free_ports()) as server,
    ):
        version = get(f"http://{server.listen.address(server.listen.http_port)}/v2").body["version"]
    beside = f"Python {platform.python_version()}, numpy {metadata.version('numpy')}"
    return f"tritonserver {version} ({binary.find().command[0]}), {beside}"
