"""What serve --watch looks at."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hf_triton.serving.apply.file_watch import WatchedFiles
from tests.support.triton import eventually
from tests.unit.generator.workspace import ONE_MODEL


@pytest.mark.threat("yaml-file-kinds")
def test_a_pipe_in_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    config = tmp_path / "models.yaml"
    config.write_text(ONE_MODEL)
    files = WatchedFiles(config)
    config.unlink()
    missing = files.digest()
    os.mkfifo(config)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(files.digest()), daemon=True)
    thread.start()
    assert eventually(lambda: bool(found))
    assert found[0] not in (missing, files.first), "it is applied, which says what stands there"
    config.unlink()
    config.write_text(ONE_MODEL)
    assert files.digest() == files.first
