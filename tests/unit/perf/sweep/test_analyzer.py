"""Finds perf_analyzer."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.errors import PerfError
from perf.sweep import analyzer as analyzers


def test_one_that_does_not_run_is_passed_over_for_the_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "perf_analyzer"
    broken.write_text("#!/bin/sh\necho cannot open shared object file\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if analyzers.installed_file("tritonclient", "bin/perf_analyzer") is None:
        pytest.skip("tritonclient's wheel has no perf_analyzer here")
    found = analyzers.find()
    assert found.version == "2.51.0"
    assert "tritonclient" in found.origin

    libraries = tmp_path / "cache" / "hf-triton" / "libraries" / "perf_analyzer"
    if found.environment:  # the system has none of the libraries
        assert sorted(path.name for path in libraries.iterdir())
        libraries.chmod(0o777)
        with pytest.raises(PerfError, match="no perf_analyzer runs here"):
            analyzers.find()
