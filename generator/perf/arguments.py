"""Arguments that several sub-verbs of ``hf-triton perf`` have."""

from __future__ import annotations

import argparse


def add_places(parser: argparse.ArgumentParser) -> None:
    """Adds --config and --repository, which ``hf-triton perf`` has too: either place will do."""
    for flag, what, default in (
        ("--config", "FILE", "models.yaml"),
        ("--repository", "FOLDER", "model_repository"),
    ):
        parser.add_argument(
            flag, default=argparse.SUPPRESS, metavar=what, help=f"default: {default}"
        )
