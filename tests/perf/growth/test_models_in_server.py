"""A real server of plain models is asked, measured, and its death told."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from generator.errors import PerfError
from perf.growth.axes.axis import Place
from perf.growth.axes.models_in_server import plain_repository
from perf.growth.axes.server import asked, body, served
from perf.load.targets import ANY_INFER
from perf.usage import memory_gib
from tests.support.triton import eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_plain_models_answer(tmp_path: Path) -> None:
    names = ["model-0000", "model-0001"]
    with served(plain_repository(Place(tmp_path, seed=0), names), names) as server:
        assert len(asked(server, ANY_INFER, names[1], [body("a text")] * 3)) == 3
        assert memory_gib(server.pid) > 0.01
        with pytest.raises(PerfError, match="none answered 4"):
            asked(server, ANY_INFER, "none", [body("a text")])


def test_a_server_that_dies_is_told(tmp_path: Path) -> None:
    repository = plain_repository(Place(tmp_path, seed=0), ["model"])

    def lose_the_server() -> None:
        with served(repository, ["model"]) as server:
            os.killpg(server.pid, signal.SIGKILL)
            assert eventually(lambda: server.exit_code() is not None)
            asked(server, ANY_INFER, "model", [body("a text")] * 1000)

    with pytest.raises(PerfError, match="the server died"):
        lose_the_server()


def test_a_model_that_fails_to_load_is_told(tmp_path: Path) -> None:
    repository = plain_repository(Place(tmp_path, seed=0), ["model"])
    (repository / "model/1/model.py").write_text("raise ValueError('broken')")
    told = r"model 'model' failed to load: .*broken"
    with pytest.raises(PerfError, match=told), served(repository, ["model"]):
        pytest.fail("a broken model was loaded")
