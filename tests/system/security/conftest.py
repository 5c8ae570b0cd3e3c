"""One ``hf-triton serve`` for what is asked of a server as it is started, and never changes it."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterator

import pytest

from tests.support.served import Served, serve
from tests.support.triton import free_ports

KEY = "the-admin-key-of-this-test"
SECRETS = {
    "HF_TRITON_ADMIN_KEY": KEY,
    "HF_TOKEN": "hf_" + "t" * 34,
}


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With every port that there is, keys that we know, and the whole log of tritonserver."""
    folder = tmp_path_factory.mktemp("safely")
    listen = dataclasses.replace(free_ports(), openai_port=free_ports().http_port)
    arguments = ("--verbose", "--", "--log-verbose=1")
    with serve(folder, "- {name: echo}", *arguments, listen=listen, environment=SECRETS) as running:
        running.wait_for("Ctrl-C stops")
        yield running
        running.signal(signal.SIGTERM)
        assert running.exit_code() == 0
        said = running.out + running.err
        assert not any(secret in said for secret in SECRETS.values())
        assert not list((folder / "repository").glob(".hf-triton-server-*"))
