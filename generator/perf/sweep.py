"""``hf-triton perf sweep``: runs perf_analyzer over a scenario."""

from __future__ import annotations

import argparse

from generator.perf.arguments import add_places

HELP = "run perf_analyzer over models, endpoints and loads, and write a report"
DESCRIPTION = "Run perf_analyzer over models, endpoints and loads, and write a report."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the scenario and where results go."""
    add_places(parser)


def run(args: argparse.Namespace) -> int:
    """Measures; returns the exit code. Raises GeneratorError."""
    raise NotImplementedError
