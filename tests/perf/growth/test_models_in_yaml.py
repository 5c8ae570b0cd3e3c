"""Every verb runs on a generated models.yaml, and the stand-in is asked as a server is."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest

from generator.models_yaml.reading import load_unpinned
from generator.render.digest import digest_in, digest_of_served
from generator.server.http_api import ServerApi
from generator.server.listen import Listen
from generator.spec.task_folders import find_tasks
from perf.growth.axes.axis import Place, Step
from perf.growth.axes.models_in_yaml import TARGETS, models_yaml, session
from perf.growth.axes.stand_in import stand_in


def test_the_models_are_right_and_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(models_yaml(9))
    specs = load_unpinned(tmp_path / "models.yaml", find_tasks())
    assert len({spec.name for spec in specs}) == 9
    assert sum(spec.streaming for spec in specs) == 5
    assert len({spec.task for spec in specs}) == 3


@pytest.mark.slow
def test_every_verb_is_measured(tmp_path: Path) -> None:
    with session(Place(tmp_path, seed=0)) as measure:
        costs = list(measure(Step(1, 0)))
    assert tuple(cost.target for cost in costs) == TARGETS
    for cost in costs:
        assert set(cost.figures) == {"wall_s", "cpu_s", "peak_memory_mib"}
        assert min(cost.figures.values()) > 0
    assert not list(tmp_path.iterdir())


def test_the_stand_in_has_every_model_or_none(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    digest = "a" * 64
    config = f'parameters {{\n  key: "hf_triton_digest"\n  value {{ string_value: "{digest}" }}\n}}'
    (tmp_path / "one/config.pbtxt").write_text(config)
    assert digest_in(config.encode()) == digest
    for loaded, states in ((True, ["READY"]), (False, [])):
        with stand_in(tmp_path, loaded=loaded) as port:
            api = ServerApi(Listen("127.0.0.1", port, grpc_port=0), answer_timeout_s=60)
            assert [version.state for version in api.index()] == states
            assert digest_of_served(api.model_config("one")) == digest
            assert api.lists_folder("one")
            assert api.unload("one") is None
            assert api.metadata()["extensions"] == ["model_repository"]
            assert _status(port, "/v2/nothing") == 404


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    response = connection.getresponse()
    assert json.loads(response.read())
    connection.close()
    return response.status
