"""What apply knows of memory before it changes anything: does a second copy of a model fit?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from generator.render.manifest import Manifest
from generator.repository.compare import Action, Change, ModelPlan
from hf_triton.serving.apply.changes import FolderAction, FolderChange, GroupChange
from hf_triton.serving.apply.memory import with_shortages
from hf_triton.serving.apply.model_control import ServedFolder
from hf_triton.serving.apply.planning import ApplyPlan, Shortage
from hf_triton.serving.apply.weight_sizes import weight_bytes
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
    """What an instance has on /metrics, of so many GiB."""
    labels = f'instance="{instance}",model="{model}",version="{version}"'
    lines = [
        f'hf_triton_memory_bytes{{device="{device}",{labels},kind="loaded"}} {loaded * GIB:f}',
        f'hf_triton_memory_bytes{{device="{device}",{labels},kind="free"}} {free * GIB:f}',
        f"hf_triton_kv_cache_bytes{{{labels}}} {cache * GIB:f}",
        f"hf_triton_load_seconds{{{labels}}} 41.250000",
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
    plan = ModelPlan(folder / name, changes, Manifest(), interrupted=False)
    return FolderChange(plan, ServedFolder({1: "READY"}), FolderAction.REPLACE, 2)


def planned(metrics: str, *folders: FolderChange) -> ApplyPlan:
    groups = tuple(GroupChange((folder,)) for folder in folders)
    return with_shortages(ApplyPlan(groups, ()), metrics)


def shortage(metrics: str, *folders: FolderChange) -> Shortage | None:
    return next(iter(planned(metrics, *folders).shortages.values()), None)


FULL_CARD = published("chat", "cuda:0", loaded=72, free=7, cache=58)
HALF_CARD = published("chat", "cuda:0", loaded=36, free=43, cache=20)


def test_a_model_that_fills_its_gpu_has_no_room_for_a_second_copy() -> None:
    found = shortage(FULL_CARD, change(options={"max_queue_size": 9}))
    assert found is not None
    # 14 GiB of weights and so on, and so much that 90 % of it hold the cache
    assert found.needed / GIB == pytest.approx(14 + 58 / 0.9)
    assert str(found) == (
        "chat: a second copy needs 78.4 GiB on cuda:0, and 7.0 GiB are free (its last load took "
        "41 s)"
    )


def test_a_cache_of_a_given_size_that_fits_twice_is_loaded_live() -> None:
    with_cache = {"kv_cache_gib": 20}
    assert shortage(HALF_CARD, change(options=with_cache)) is None
    smaller = shortage(FULL_CARD, change(options=with_cache))
    assert smaller is not None
    assert smaller.needed / GIB == pytest.approx(14 + 20)


def test_beside_what_it_has_now_a_cache_without_a_size_would_stay_small() -> None:
    found = shortage(published("chat", "cuda:0", 36, free=37, cache=20), change())
    assert found is not None
    assert found.needed / GIB == pytest.approx(16 + 20 / 0.9)


def test_instances_and_devices_are_added_up() -> None:
    metrics = published("chat", "cuda:0", 10, 25, cache=4) + published(
        "chat", "cuda:0", 10, 24, cache=4, instance="1"
    )
    assert shortage(metrics, change(options={"kv_cache_gib": 4})) is None
    found = shortage(metrics, change(options={"kv_cache_gib": 7}))
    assert found is not None
    assert found.needed / GIB == pytest.approx(26)
    assert found.free == 24 * GIB
    on_two = metrics + published("chat", "cuda:1", 10, 1, instance="2", cache=4)
    found = shortage(on_two, change())
    assert found is not None
    assert found.device == "cuda:1"


def test_on_the_cpu_a_cache_is_not_there_before_it_is_written() -> None:
    assert shortage(published("chat", "cpu", 3, free=4, cache=9), change()) is None
    found = shortage(published("chat", "cpu", 3, free=2, cache=9), change())
    assert found is not None
    assert found.needed == 3 * GIB
    options = {"kv_cache_gib": 5}
    found = shortage(published("chat", "cpu", 3, free=4, cache=9), change(options=options))
    assert found is not None
    assert found.needed == 8 * GIB


@pytest.mark.parametrize(
    "metrics",
    [
        "",
        published("other", "cuda:0", 72, 7),
        published("chat", "cuda:0", 72, 7, version=3),
        'hf_triton_kv_cache_bytes{instance="0",model="chat",version="1"} 9e12\n',
    ],
)
def test_a_copy_of_unknown_size_is_not_refused(metrics: str) -> None:
    assert shortage(metrics, change()) is None


def test_a_model_that_moves_to_other_devices_is_of_unknown_size() -> None:
    elsewhere = 'name: "chat" instance_group { gpus: 1 }'
    assert shortage(FULL_CARD, change(config=elsewhere, old='name: "chat"')) is None
    assert shortage(FULL_CARD, change(device_map="auto")) is None
    assert shortage(FULL_CARD, change(options={"engine": "vllm"})) is None


def test_several_models_that_fit_one_by_one_are_loaded_so() -> None:
    metrics = "".join(published(name, "cuda:0", 10, free=25) for name in ("a", "b", "c"))
    found = planned(metrics, *(change(name) for name in ("a", "b", "c")))
    assert not found.shortages
    assert found.alone == {"c"}


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
    assert found is not None
    assert found.needed / GIB == pytest.approx(50)
    half = change(folder=tmp_path, model="org/larger", dtype="bfloat16", options=options)
    assert shortage(HALF_CARD, half) is None


def test_of_other_weights_that_are_not_there_yet_the_cache_counts() -> None:
    found = shortage(FULL_CARD, change(revision="abc"))
    assert found is not None
    assert found.needed / GIB == pytest.approx(58 / 0.9)
    assert shortage(FULL_CARD, change(revision="abc", options={"kv_cache_gib": 6})) is None


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
