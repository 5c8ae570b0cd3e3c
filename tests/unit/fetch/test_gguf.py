"""A model of one .gguf file: the one that is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_hub import COMMIT, FakeHub, Repository
from tests.unit.fetch.workplace import Workplace

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
