"""The OpenAI port answers as its schema says, to requests that match it and that don't."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.openai_api.conftest import Translator

HERE = Path(__file__).parent
# Patterns of paths, and a model for each.
MODELS = {
    "embed": "vectors",
    "rank|score": "pairs",
    "classify|predict": "labels",
    "audio": "hears",
    "": "echo",
}


@pytest.mark.threat("openai-schema")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="schemathesis needs Python 3.11")
def test_what_is_answered_is_as_the_schema_says(api: Translator, tmp_path: Path) -> None:
    """No 500, and all as declared."""
    command = (sys.executable, "-m", "schemathesis.cli", "--config-file")
    asked = ("run", f"{api.url}/openapi.json", "--phases", "fuzzing")
    ran = subprocess.run(
        [*command, str(HERE / "schemathesis.toml"), *asked, "--max-examples", "10"],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": str(HERE / "schemathesis_hooks.py"),
            "HF_TRITON_TEST_MODELS": json.dumps(MODELS),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path),
        },
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
