"""Finds models.yaml and the model repository, by the command line or the running server; adds
arguments as several verbs have them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from generator.errors import UsageError

CONFIG, REPOSITORY = "models.yaml", "model_repository"


def add_places(parser: argparse.ArgumentParser) -> None:
    """Adds --config and --repository to a verb, or to one below a verb that has them too."""
    for name, metavar, usual in (
        ("config", "FILE", f"that of the server that runs on the repository, else {CONFIG}"),
        ("repository", "FOLDER", REPOSITORY),
    ):
        parser.add_argument(
            f"--{name}",
            dest=f"given_{name}",
            type=_path,
            default=argparse.SUPPRESS,  # a lower verb's default would replace what was given above
            metavar=metavar,
            help=f"default: {usual}",
        )


def add_switches(parser: argparse._ActionsContainer, switches: Mapping[str, str]) -> None:
    """Adds options without a value, each with its help."""
    for flag, about in switches.items():
        parser.add_argument(flag, action="store_true", help=about)


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a path")
    return text


class Places(argparse.Namespace):
    """The arguments, and the two places, which are looked for when a verb asks for them."""

    given_config: str | None = None
    given_repository: str | None = None

    @property
    def repository(self) -> str:
        return self.given_repository or REPOSITORY

    @cached_property
    def config(self) -> str:
        """The file that was given, else that of the server that runs on the repository, else the
        usual one. Raises UsageError where servers have several, or theirs is gone.
        """
        if self.given_config:
            return self.given_config
        from hf_triton.tritonserver.state_file import running_servers

        wanted = self.http_port if self.verb == "apply" else None
        servers = running_servers(Path(self.repository))
        ports = {one.config: one.http_port for one in servers if wanted in (None, one.http_port)}
        if not ports:
            return CONFIG
        told = " and ".join(f"{config} (port {port})" for config, port in ports.items())
        if len(ports) > 1:
            raise UsageError(
                f"servers run on {self.repository} with {told}: name one with --config FILE"
            )
        [config] = ports
        if not Path(config).is_file():
            raise UsageError(
                f"a server runs on {self.repository} with {told}, which no longer exists: name its "
                "models.yaml with --config FILE"
            )
        if Path(CONFIG).is_file() and Path(CONFIG).samefile(config):
            return CONFIG
        print(f"hf-triton: reading {told}, with which the server was started", file=sys.stderr)
        return config
