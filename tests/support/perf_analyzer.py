"""The environment in which programs find a perf_analyzer that runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from generator.errors import PerfError
from perf.sweep import analyzer


def environment_with_analyzer() -> dict[str, str]:
    """Ours, with the one that `hf-triton perf sweep` finds. Skips the test where none runs."""
    try:
        found = analyzer.find()
    except PerfError as error:
        pytest.skip(str(error))
    path = f"{Path(found.path).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **found.environment, "PATH": path}
