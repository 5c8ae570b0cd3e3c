"""Adapters, and models of one .gguf file, are fetched into a model's cache and locked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.model_files import adapter_folder
from tests.support.fake_hub import COMMIT, FakeHub, Repository
from tests.unit.fetch.workplace import Workplace

SAVED = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"low rank" * 100}
LEFT_OUT = {
    "README.md": b"#",
    "optimizer.pt": b"o",
    "tokenizer.json": b"{}",
    "checkpoint-5/adapter_model.safetensors": b"older",
}


@pytest.fixture
def adapted(work: Workplace, hub: FakeHub) -> Workplace:
    """A model with an adapter on the Hub, and one beside models.yaml."""
    hub.repositories["org/sql"] = Repository({**SAVED, **LEFT_OUT})
    local = work.folder / "polite"
    local.mkdir()
    for name, content in SAVED.items():
        (local / name).write_bytes(content)
    write(work, {"name": "sql", "model": "org/sql"}, {"name": "polite", "model": "./polite"})
    return work


def write(work: Workplace, *adapters: dict[str, Any], **keys: Any) -> None:
    model = {"name": "tiny", "task": "text-generation", "model": "org/tiny", "streaming": False}
    work.write_models([{**model, **({"adapters": adapters} if adapters else {}), **keys}])


def folders(work: Workplace) -> dict[str, Path]:
    served = work.served()
    return {one.name: adapter_folder(served, one) for one in served.adapters}


def test_an_adapters_two_files_come_into_the_models_cache(adapted: Workplace, hub: FakeHub) -> None:
    ran = adapted.fetch()
    assert f"tiny, adapter sql: org/sql ({COMMIT[:12]}), 2 files" in ran.out
    assert "tiny, adapter polite: ./polite is local, nothing to fetch" in ran.out
    assert set(adapted.lock["models"]) == {"org/tiny", "org/sql"}
    assert set(adapted.lock["models"]["org/sql"]["main"]["files"]) == set(SAVED)
    hub.fails = True
    found = folders(adapted)
    assert adapted.cache() in found["sql"].parents
    assert sorted(path.name for path in found["sql"].iterdir()) == sorted(SAVED)
    assert found["polite"] == adapted.folder / "polite"
    assert adapted.run("fetch", "--verify", "--dry-run").code == 0


def test_one_that_is_not_as_locked_is_not_loaded(adapted: Workplace) -> None:
    adapted.fetch()
    weights = folders(adapted)["sql"] / "adapter_model.safetensors"
    weights.resolve().write_bytes(b"another size")
    with pytest.raises(LoadError) as raised:
        folders(adapted)
    assert str(raised.value).startswith(f"adapter sql: org/sql@{COMMIT}: adapter_model.safetensors")
    assert (
        "tiny, adapter sql: adapter_model.safetensors has 12 bytes"
        in adapted.run("fetch", "--verify", "--dry-run").err
    )
    adapted.fetch()
    assert folders(adapted)["sql"].is_dir()


def test_one_that_is_not_locked_is_told_of_where_it_stands(
    adapted: Workplace, hub: FakeHub
) -> None:
    adapted.fetch()
    hub.repositories["org/new"] = Repository(dict(SAVED))
    write(adapted, {"name": "new", "model": "org/new"})
    said = adapted.refused("generate")
    assert "models[0].adapters[0].model: org/new at main is not in models.lock" in said


@pytest.mark.parametrize(
    "files, said",
    [
        (
            {"model.safetensors": b"w"},
            "it is not an adapter of PEFT: it has no adapter_config.json",
        ),
        ({"adapter_config.json": b"{}"}, "it has no weights: neither adapter_model.safetensors"),
        (
            {"adapter_config.json": b"{}", "adapter_model.bin": b"p"},
            "it has weights only as a pickle (adapter_model.bin)",
        ),
    ],
)
def test_what_is_no_adapter_is_refused_and_the_model_comes_all_the_same(
    adapted: Workplace, hub: FakeHub, files: dict[str, bytes], said: str
) -> None:
    hub.repositories["org/sql"] = Repository(files)
    assert f"tiny, adapter sql: org/sql: {said}" in adapted.refused("fetch")
    assert adapted.snapshots()


def test_without_a_fetch_the_server_downloads_the_same_files(adapted: Workplace) -> None:
    found = folders(adapted)["sql"]
    assert sorted(path.name for path in found.iterdir()) == sorted(SAVED)


@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapter_model.bin"])
def test_a_model_and_its_adapters_may_come_from_one_repository(
    work: Workplace, hub: FakeHub, weights: str
) -> None:
    saved = {"adapter_config.json": b"{}", weights: b"low rank"}
    hub.repositories["org/tiny"].files.update(saved)
    write(work, allow_pickle=True)
    work.fetch()
    adapters = [{"name": name, "model": "org/tiny"} for name in ("sql", "polite")]
    write(work, *adapters, allow_pickle=True)
    if "bin" in weights:  # else the model has all files of its adapter
        said = work.refused("generate")
        assert "by models.lock, org/tiny has no weights: neither" in said
        assert said.endswith("; run hf-triton fetch tiny\n")
    for _ in range(2):
        work.fetch()
        assert set(work.files()) == {*hub.repositories["org/tiny"].files}
        assert "incomplete" not in "".join(map(str, work.cache().rglob("*")))
        assert "all here" in work.fetch("--dry-run").out
        assert folders(work) == dict.fromkeys(("sql", "polite"), work.loaded())
        assert work.run("fetch", "--verify", "--dry-run").code == 0


TASK = "text-generation"


@pytest.fixture
def files(hub: FakeHub) -> dict[str, bytes]:
    found = {"q4.gguf": b"4" * 1000, "q8.gguf": b"8" * 2000}
    hub.repositories["org/tiny"] = Repository(found)
    return found


def test_one_file_is_fetched_locked_and_served(work: Workplace, files: dict[str, bytes]) -> None:
    work.write("tiny", task=TASK, gguf_file="q4.gguf")
    work.fetch()
    assert work.files() == {"q4.gguf": files["q4.gguf"]}
    assert [*work.lock["models"]["org/tiny"]["main"]["files"]] == ["q4.gguf"]
    assert work.served("tiny_stream").gguf_file == "q4.gguf"
    assert work.loaded("tiny_stream") == work.snapshots()[0]


def test_another_file_than_the_locked_one_is_looked_up_anew(
    work: Workplace, files: dict[str, bytes]
) -> None:
    work.write("tiny", task=TASK, gguf_file="q4.gguf")
    work.fetch()
    work.write("tiny", task=TASK, gguf_file="q8.gguf")
    assert "no file q8.gguf: its GGUF files are q4.gguf; run hf-triton" in work.refused("generate")
    work.fetch()
    assert work.files() == {"q8.gguf": files["q8.gguf"]}


def test_a_second_file_comes_from_the_commit_that_is_locked(
    hub: FakeHub, work: Workplace, files: dict[str, bytes]
) -> None:
    tiny = {"task": TASK, "model": "org/tiny"}
    four, eight = ({**tiny, "name": one, "gguf_file": f"{one}.gguf"} for one in ("q4", "q8"))
    work.write_models([four])
    work.fetch()
    hub.repositories["org/tiny"].push({"q4.gguf": b"new", "q9.gguf": b"new"}, "b" * 40)
    work.write_models([four, eight])
    work.fetch()
    locked = work.lock["models"]["org/tiny"]["main"]
    assert (locked["commit"], [*locked["files"]]) == (COMMIT, ["q4.gguf", "q8.gguf"])
    assert work.files("q8") == {"q8.gguf": files["q8.gguf"]}
    for name in ("q4_stream", "q8_stream"):
        assert work.loaded(name).is_dir()

    work.write_models([four, {**eight, "gguf_file": "q9.gguf"}])
    assert "it has no file q9.gguf: its GGUF files are q4.gguf, q8.gguf" in work.refused("fetch")


@pytest.mark.parametrize(
    "keys, told",
    [
        ({"options": {"engine": "vllm"}}, ".gguf_file: vLLM can't read a .gguf file"),
        ({"quantization": "int8"}, ".quantization: expected null: the weights of a .gguf file"),
        ({"model": "here.gguf", "gguf_file": "q4.gguf"}, "local folder write model: FOLDER/"),
        ({"model": "folder.gguf"}, "it is a folder, expected a regular file"),
    ],
)
def test_what_does_not_go_together_is_named(
    work: Workplace, keys: dict[str, Any], told: str
) -> None:
    (work.folder / "here.gguf").write_bytes(b"GGUF")
    (work.folder / "folder.gguf").mkdir()
    work.write("tiny", **{"task": TASK, "gguf_file": None if "model" in keys else "a.gguf", **keys})
    assert told in work.refused("validate")


def test_a_file_here_is_written_as_a_path_from_the_models_folder(work: Workplace) -> None:
    (work.folder / "here.gguf").write_bytes(b"GGUF")
    work.write("tiny", task=TASK, model="./here.gguf", streaming=False)
    served = work.served()
    assert (served.model, served.gguf_file) == ("../../here.gguf", "here.gguf")
    assert "here.gguf is local, nothing to fetch" in work.fetch().out
