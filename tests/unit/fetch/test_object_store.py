"""`hf-triton fetch` from object stores, by a fake file system of fsspec's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from generator.fetch import hub_client, object_store
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.model_files import model_files
from tests.unit.fetch.workplace import Workplace

URL = "s3://models/tiny"
FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 1000, "vocab/words.txt": b"a b"}
SECRET = "TheSecretThatMustNotBeSeen"


@dataclass
class FakeStore:
    """The used part of an fsspec file system. ``before_block`` is called with each offset."""

    objects: dict[str, bytes] = field(default_factory=dict)
    before_block: Callable[[int], object] = lambda start: None
    blocks: list[int] = field(default_factory=list)
    cut: int | None = None

    def put(self, name: str, content: bytes) -> None:
        self.objects[f"models/tiny/{name}"] = content

    def find(self, root: str, detail: bool) -> dict[str, Any]:
        return {place: self.info(place) for place in self.objects if place.startswith(f"{root}/")}

    def info(self, place: str) -> dict[str, Any]:
        content = self.objects[place]
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        return {"type": "file", "size": len(content), "ETag": etag}

    def cat_file(self, place: str, *, start: int, end: int) -> bytes:
        self.before_block(start)
        self.blocks.append(start)
        return self.objects[place][start:end][: self.cut]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    store = FakeStore()
    monkeypatch.setattr(object_store, "file_system", lambda scheme: store)
    monkeypatch.setattr(object_store, "BLOCK", 1000)
    monkeypatch.setattr(hub_client, "WAITS_S", (0.0, 0.0))
    for name, content in FILES.items():
        store.put(name, content)
    return store


@pytest.fixture
def work(workplace: Workplace) -> Workplace:
    workplace.write("tiny", model=URL)
    return workplace


def test_a_folder_is_fetched_locked_and_served_without_the_store(
    work: Workplace, fake: FakeStore
) -> None:
    work.fetch()
    assert work.files() == FILES
    locked = work.lock["models"][URL]["main"]["files"]
    assert {name: one["sha256"] for name, one in locked.items()} == {
        name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()
    }
    folder = work.loaded()
    assert (folder / "config.json").read_bytes() == b"{}"
    assert work.run("fetch", "--verify", "--dry-run").code == 0
    (work.folder / "models.lock").unlink()
    assert work.loaded() == folder


def test_a_changed_folder_is_another_commit(work: Workplace, fake: FakeStore) -> None:
    work.fetch()
    before = work.lock["models"][URL]["main"]["commit"]
    fake.put("config.json", b"[]")
    assert "all here" in work.fetch().out
    work.fetch("--update")
    assert work.lock["models"][URL]["main"]["commit"] != before
    assert (work.loaded() / "config.json").read_bytes() == b"[]"


def test_another_object_than_the_locked_one_is_refused(work: Workplace, fake: FakeStore) -> None:
    work.fetch()
    work.cache().rename(work.folder / "elsewhere")
    fake.put("config.json", b"[]")
    told = work.refused("fetch", "--locked")
    assert "config.json was downloaded, but is not the expected file" in told
    assert "models.lock expects it: if the new one is right, run hf-triton fetch --update" in told
    fake.put("config.json", b"[1]")
    assert "config.json has 3 bytes where 2 are expected" in work.refused("fetch", "--locked")
    assert not work.snapshots()


def test_what_was_cut_off_goes_on_where_it_stopped(work: Workplace, fake: FakeStore) -> None:
    def cut(start: int) -> None:
        if len(fake.blocks) == 9:
            raise OSError("connection lost")

    fake.put("second.safetensors", b"w" * 3500)
    fake.before_block = cut
    told = work.refused("fetch", "--max-workers", "1")
    assert "the store gave no answer: check the network and its address" in told
    assert not work.snapshots()
    with pytest.raises(LoadError, match="run `hf-triton fetch tiny`"):
        model_files(work.served())
    fake.before_block = lambda start: None
    fake.blocks.clear()
    work.fetch()
    assert work.files() == {**FILES, "second.safetensors": b"w" * 3500}
    assert sorted(fake.blocks) == [0, 0, 2000, 3000]  # of the first file none, two of the second


def test_an_object_that_changes_while_it_comes_is_refused(work: Workplace, fake: FakeStore) -> None:
    def change(start: int) -> None:
        if start == 3000:
            fake.put("model.safetensors", b"WEIGHTS" * 1000)

    fake.before_block = change
    assert "model.safetensors has changed since it was listed: run again" in work.refused("fetch")
    assert not work.snapshots()
    work.fetch()
    assert work.files()["model.safetensors"] == b"WEIGHTS" * 1000


def test_answers_that_end_early_are_one_line(work: Workplace, fake: FakeStore) -> None:
    fake.cut = 1
    assert "s3://models/tiny: the store's answer ended early" in work.refused("fetch")
    assert not work.snapshots()


@pytest.mark.parametrize("address", ["s3://nowhere/tiny", "s3://models/nowhere"])
def test_a_folder_that_is_not_there_is_one_line(
    work: Workplace, fake: FakeStore, address: str
) -> None:
    work.write("tiny", model=address)
    told = work.refused("fetch")
    assert told.endswith(
        f"tiny: {address}: the store has no such folder, or nothing in it: check 'model' in "
        "models.yaml\n"
    )


@pytest.mark.threat("hub-file-names")
def test_an_object_whose_name_leads_out_of_the_cache_is_refused(
    work: Workplace, fake: FakeStore
) -> None:
    fake.put("../../up.json", b"{}")
    assert "'../../up.json' is not a path inside a folder" in work.refused("fetch")
    assert not work.snapshots()


def test_a_package_that_is_missing_is_named(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(scheme: str) -> None:
        raise ImportError(scheme)

    monkeypatch.setattr(object_store, "file_system", missing)
    work.write("tiny", model="gs://models/tiny")
    told = "needs a package that is not installed: pip install 'gcsfs>=2025.3,<2028'"
    assert told in work.refused("fetch")


@pytest.mark.threat("store-credentials")
@pytest.mark.parametrize(
    "error, told",
    [
        (PermissionError(f"InvalidAccessKeyId {SECRET}"), "AWS_ACCESS_KEY_ID and AWS_SECRET_"),
        (OSError(f"Unable to locate credentials {SECRET}"), "or give this machine a role"),
        (OSError(f"no route, {SECRET}, http://a?sig=abc"), "$AWS_SECRET_ACCESS_KEY, http://a?***"),
        (OSError("Cannot connect to http://a:40312/permission/403"), "gave no answer"),
    ],
)
def test_no_message_and_no_file_quotes_credentials(
    work: Workplace,
    fake: FakeStore,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    told: str,
) -> None:
    def refuse(start: int) -> None:
        raise error

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    fake.before_block = refuse
    ran = work.run("fetch")
    assert ran.code == 1
    assert told in ran.err
    assert SECRET not in ran.out + ran.err
    assert work.run("generate").code == 0
    written = [path.read_bytes() for path in work.folder.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in content for content in written)


def test_a_file_that_is_damaged_here_is_not_locked_as_it_is(
    work: Workplace, fake: FakeStore
) -> None:
    work.fetch()
    before = work.lock
    (place,) = work.cache().glob("models--s3*/snapshots/*/config.json")
    place.resolve().write_bytes(b"[]")
    work.fetch("--update")
    assert (work.files(), work.lock) == (FILES, before)


def test_an_adapter_comes_from_a_store_too(work: Workplace, fake: FakeStore) -> None:
    fake.objects["models/polite/adapter_config.json"] = b"{}"
    fake.objects["models/polite/adapter_model.safetensors"] = b"adapter"
    adapters = [{"name": "polite", "model": "s3://models/polite"}]
    work.write("tiny", task="text-generation", model=URL, adapters=adapters)
    work.fetch()
    assert [*work.lock["models"]] == ["s3://models/polite", URL]
