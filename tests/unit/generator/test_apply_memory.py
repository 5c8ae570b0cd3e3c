"""Apply estimates memory before it changes anything: does a second copy of a model fit?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from generator.render.memory import PROCESS_BYTES, weight_bytes
from generator.repository.compare import Action, Change, ModelPlan
from hf_triton.serving.apply.memory import with_shortages
from hf_triton.serving.apply.planning import ApplyPlan, FolderChange, GroupChange
from hf_triton.serving.apply.target import ServedFolder
from hf_triton.tritonserver.http_api import parse_metrics
from tests.support.apply_bench import Bench, bench

GIB = 2**30
SLOWER = "options: {answer_s: 0.01}"
MODEL: dict[str, Any] = {
    "model": "org/chat",
    "public_name": "chat",
    "local": False,
    "revision": None,
    "dtype": "auto",
    "device_map": None,
    "quantization": None,
    "options": {},
}


def published(
    model: str,
    device: str,
    loaded: float,
    free: float,
    cache: float = 0,
    instance: str = "0",
    version: int = 1,
) -> str:
    """An instance's metrics of memory, from sizes in GiB."""
    labels = f'instance="{instance}",model="{model}",version="{version}"'
    lines = [
        f'hf_triton_memory_bytes{{device="{device}",{labels},kind="loaded"}} {loaded * GIB:f}',
        f'hf_triton_memory_bytes{{device="{device}",{labels},kind="free"}} {free * GIB:f}',
        f"hf_triton_kv_cache_bytes{{{labels}}} {cache * GIB:f}",
    ]
    return "\n".join(lines) + "\n"


def change(
    name: str = "chat",
    folder: Path = Path("repository"),
    config: str = 'name: "chat"',
    old: str = "",
    **new: Any,
) -> FolderChange:
    """A folder that gets a new version with other values in its model.json."""
    before, after = (json.dumps({**MODEL, **more}).encode() for more in ({}, new))
    changes = (
        Change("1/model.json", Action.UPDATE, before, after),
        Change("config.pbtxt", Action.UPDATE, (old or config).encode(), config.encode()),
    )
    plan = ModelPlan(folder / name, changes, {}, interrupted=False)
    return FolderChange(plan, ServedFolder({1: "READY"}), True, 2)


def planned(metrics: str, *folders: FolderChange) -> ApplyPlan:
    groups = tuple(GroupChange((folder,)) for folder in folders)
    return with_shortages(ApplyPlan(groups), parse_metrics(metrics))


def shortage(metrics: str, *folders: FolderChange) -> str | None:
    return next(iter(planned(metrics, *folders).shortages.values()), None)


def needed_gib(told: str | None) -> float | None:
    found = re.search(r"needs ([0-9.]+) GiB", told or "")
    return float(found[1]) if found else None


FULL_CARD = published("chat", "cuda:0", loaded=72, free=7, cache=58)
HALF_CARD = published("chat", "cuda:0", loaded=36, free=43, cache=20)


TWO = published("chat", "cuda:0", 10, 25, cache=4)
TWO += published("chat", "cuda:0", 10, 24, cache=4, instance="1")
ON_CPU = published("chat", "cpu", 3, free=4, cache=9)
ELSEWHERE = 'name: "chat" instance_group { gpus: 1 }'
CASES: dict[str, tuple[str, dict[str, Any], float | None]] = {
    "a cache that fills the GPU": (FULL_CARD, {}, 14 + 58 / 0.9),
    "a cache of a given size fits twice": (HALF_CARD, {"options": {"kv_cache_gib": 20}}, None),
    "or does not": (FULL_CARD, {"options": {"kv_cache_gib": 20}}, 14 + 20),
    "without a size a cache would stay small": (
        published("chat", "cuda:0", 36, free=37, cache=20),
        {},
        16 + 20 / 0.9,
    ),
    "instances are added up and fit": (TWO, {"options": {"kv_cache_gib": 4}}, None),
    "or do not": (TWO, {"options": {"kv_cache_gib": 7}}, 26),
    "each device has room of its own": (
        TWO + published("chat", "cuda:1", 10, 1, instance="2", cache=4),
        {},
        6 + 4 / 0.9,
    ),
    "a cache on the CPU is not there before it is written": (ON_CPU, {}, None),
    "what the CPU's weights need": (published("chat", "cpu", 3, free=2, cache=9), {}, 3),
    "a given cache counts there too": (ON_CPU, {"options": {"kv_cache_gib": 5}}, 8),
    "nothing is published": ("", {}, None),
    "another model's": (published("other", "cuda:0", 72, 7), {}, None),
    "another version's": (published("chat", "cuda:0", 72, 7, version=3), {}, None),
    "moved to other GPUs": (FULL_CARD, {"config": ELSEWHERE, "old": 'name: "chat"'}, None),
    "moved to all GPUs": (FULL_CARD, {"device_map": "auto"}, None),
    "another engine": (FULL_CARD, {"options": {"engine": "vllm"}}, None),
    "the cache beside unknown weights": (FULL_CARD, {"revision": "abc"}, 58 / 0.9),
    "a small one": (FULL_CARD, {"revision": "abc", "options": {"kv_cache_gib": 6}}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_second_copy_needs_what_the_first_one_has(case: str) -> None:
    metrics, changed, needed = CASES[case]
    found = shortage(metrics, change(**changed))
    assert needed_gib(found) == (needed and pytest.approx(needed, abs=0.05))


def test_several_models_that_fit_one_by_one_are_loaded_so() -> None:
    metrics = "".join(published(name, "cuda:0", 10, free=25) for name in ("a", "b", "c"))
    found = planned(metrics, *(change(name) for name in ("a", "b", "c")))
    assert not found.shortages
    assert found.one_by_one == {"c"}


def weights(folder: Path, size: int, **config: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size)
    (folder / "config.json").write_text(json.dumps(config))


def test_other_weights_count_as_their_files_do(tmp_path: Path) -> None:
    cache = tmp_path / "chat" / "hf_cache" / "models--org--larger"
    weights(cache / "snapshots" / "abc", 30 * GIB, dtype="float32")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    options = {"kv_cache_gib": 20}
    found = shortage(HALF_CARD, change(folder=tmp_path, model="org/larger", options=options))
    assert needed_gib(found) == 50
    half = change(folder=tmp_path, model="org/larger", dtype="bfloat16", options=options)
    assert shortage(HALF_CARD, half) is None


def test_more_instances_need_at_least_their_weights(tmp_path: Path) -> None:
    weights(tmp_path / "model", 3 * GIB)
    metrics = published("chat", "cpu", loaded=3.3, free=10)
    for count, needed in ((2, None), (4, 4 * (3 + PROCESS_BYTES / GIB))):
        config = f'name: "chat" instance_group {{ count: {count} kind: KIND_CPU }}'
        local = change("chat", tmp_path, config, 'name: "chat"', model="../model", local=True)
        found = shortage(metrics, local)
        assert needed_gib(found) == (needed and pytest.approx(needed, abs=0.05))


def test_weights_in_parts_are_those_that_the_index_names(tmp_path: Path) -> None:
    weights(tmp_path / "model", 1000)
    for name in ("a", "b", "consolidated"):
        (tmp_path / "model" / f"{name}.safetensors").write_bytes(b"x" * 100)
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"}}
    local = {**MODEL, "local": True, "model": "../model"}
    assert weight_bytes(tmp_path / "chat", local) == 1000
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weight_bytes(tmp_path / "chat", local) == 200
    assert weight_bytes(tmp_path / "chat", {**local, "quantization": {"method": "int8"}}) == 0
    assert weight_bytes(tmp_path / "chat", {**local, "model": "../nothing"}) == 0


def test_of_an_ensemble_the_model_step_alone_has_weights(tmp_path: Path) -> None:
    weights(tmp_path / "model", 1000)
    step = {**MODEL, "local": True, "model": "../model"}
    sizes = [
        weight_bytes(tmp_path / f"e_{role}", {**step, "role": role})
        for role in ("tokenizer", "model", "postprocessing")
    ]
    assert sizes == [0, 1000, 0]
    for version, size in ((1, 300), (2, 500)):
        (tmp_path / f"e_model/{version}").mkdir(parents=True)
        (tmp_path / f"e_model/{version}/model.onnx").write_bytes(b"x" * size)
    native = {"name": "e_model", "file": "model.onnx"}
    assert weight_bytes(tmp_path / "e_model", native) == 500


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with bench("fake", tmp_path, monkeypatch) as found:
        yield found


def test_a_model_with_room_is_replaced_live_beside_one_with_a_gap(made: Bench) -> None:
    fake = made.fake
    assert fake is not None
    fake.metrics = published("a", "cuda:0", 72, 7)
    made.say(f"- {{name: a, {SLOWER}}}\n- {{name: s, streaming: true, {SLOWER}}}\n")
    assert made.apply("--allow-gap").code == 0
    assert [one for one in fake.events if "unload" in one and "probe" not in one] == ["unload a"]


def test_an_engine_whose_front_fails_makes_room_for_the_old_one_again(made: Bench) -> None:
    fake = made.fake
    assert fake is not None
    fake.metrics = published("s", "cuda:0", 72, 7)
    front = made.repository / "s" / "2"
    made.say("- {name: a}\n- {name: s, streaming: true, max_batch_size: 4}\n")
    load = fake.load

    def break_the_front(name: str) -> None:
        if name == "s" and front.exists():
            (front / "model.json").write_text('{"options": {"fail": "no front"}}')
        load(name)

    fake.load = break_the_front  # type: ignore[method-assign]
    ran = made.apply("--allow-gap")
    assert "model 's' failed: RuntimeError: no front; version 1 is loaded again" in ran.err
    assert (made.ready("s"), made.ready("s_stream")) == ({1}, {1})
    events = [event for event in fake.events if "probe" not in event]
    again = ["unload s_stream", "load s_stream"]
    assert events == [*again, "load s", *again]


SLOW = "options: {load_s: 0.4}"
NO_ROOM = published("a", "cuda:0", 72, 7) + published("s", "cuda:0", 72, 7)


@pytest.fixture
def full(made: Bench) -> Bench:
    """Memory has room for no second copy."""
    assert made.fake is not None
    made.fake.metrics = NO_ROOM
    return made


def files(made: Bench) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in made.repository.rglob("*") if path.is_file()}


def test_without_room_nothing_is_touched_and_the_numbers_are_told(full: Bench) -> None:
    before = files(full)
    full.say(f"- {{name: a, {SLOW}}}\n- {{name: s, streaming: true, {SLOW}}}\n- {{name: new}}\n")
    dry = full.apply("--dry-run")
    assert dry.code == 1
    assert "change     a: version 1 -> 2" in dry.out
    told = "a second copy needs 72.0 GiB on cuda:0, and 7.0 GiB are free"
    assert f"no room    a: {told}" in dry.out
    assert f"no room    s: {told}" in dry.out
    ran = full.apply()
    assert ran.code == 1
    assert ran.out == dry.out
    assert "a, s: there is no room for a second copy beside the one that answers" in ran.err
    assert "--allow-gap" in ran.err
    assert files(full) == before
    assert (full.ready("a"), full.ready("s_stream"), full.ready("new")) == ({1}, {1}, set())


def test_with_a_gap_the_old_copy_goes_first(full: Bench) -> None:
    full.say(f"- {{name: a, {SLOW}}}\n- {{name: s, streaming: true, {SLOW}}}\n")
    ran = full.apply("--allow-gap")
    assert ran.code == 0, ran
    assert (full.ready("a"), full.ready("s_stream"), full.ready("s")) == ({2}, {2}, {1})
    assert "a: unloaded; requests wait until it is loaded again" in ran.out
    assert "s: s_stream version 2 ready, after " in ran.out
    assert full.fake is not None
    one_by_one = ["unload a", "load a", "unload s_stream", "load s_stream"]
    assert full.fake.events == one_by_one
    assert full.is_current()


def test_where_the_old_one_does_not_come_back_either_that_is_told(full: Bench) -> None:
    config = full.repository / "a" / "1" / "model.json"
    config.write_text(config.read_text().replace('"fail": null', '"fail": "gone too"'))
    full.say('- {name: a, options: {fail: "no weights"}}\n- {name: s, streaming: true}\n')
    ran = full.apply("--allow-gap", "--force")
    assert ran.code == 1
    assert "no weights; version 1 is on disk again, but could not be loaded: a: " in ran.err
    assert "gone too" in ran.err
