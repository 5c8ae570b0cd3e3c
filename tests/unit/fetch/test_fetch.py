"""`hf-triton fetch` fills the caches from a Hub (a fake one, asked by the real client)."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from generator.fetch import fetching
from generator.fetch.fetching import Progress
from generator.fetch.hub_client import size
from tests.support.fake_hub import COMMIT, FakeHub, Repository
from tests.support.triton import eventually
from tests.unit.fetch.conftest import FILES
from tests.unit.fetch.workplace import Workplace

SECRET = "hf_SecretTokenThatMustNotBeSeen123456"
NEW = "b" * 40


def test_what_models_yaml_names_lies_in_the_models_cache_as_the_server_looks_for_it(
    work: Workplace, hub: FakeHub
) -> None:
    ran = work.fetch()
    assert work.files() == FILES
    assert f"tiny: org/tiny ({COMMIT[:12]}), 3 files, 7.0 kB: 0 B here, 7.0 kB to fetch" in ran.out
    assert "7.0 kB to fetch, " in ran.out
    assert " free in " in ran.out
    assert "all is here, locked in models.lock\n" in ran.out
    hub.paths.clear()
    hub.fails = True
    assert work.loaded() == work.snapshots()[0]
    assert hub.paths == []


def test_the_lock_has_the_commit_and_every_file(work: Workplace) -> None:
    work.fetch()
    expected = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in FILES.items()
    }
    models = {"org/tiny": {"main": {"commit": COMMIT, "files": expected}}}
    assert work.lock == {"version": 1, "models": models}


def test_the_lock_is_the_same_however_often_it_is_written(work: Workplace, hub: FakeHub) -> None:
    hub.repositories["org/other"] = Repository({"model.safetensors": b"o"})
    work.fetch()
    before = (work.folder / "models.lock").read_bytes()
    changed = (work.folder / "models.lock").stat().st_mtime_ns
    work.fetch()
    assert (work.folder / "models.lock").stat().st_mtime_ns == changed
    (work.folder / "models.lock").unlink()
    work.fetch()
    assert (work.folder / "models.lock").read_bytes() == before


def test_what_is_here_is_not_asked_for_again(work: Workplace, hub: FakeHub) -> None:
    work.fetch()
    hub.paths.clear()
    ran = work.fetch()
    assert hub.paths == []
    assert "7.0 kB: all here" in ran.out


def test_what_the_server_downloaded_is_taken_over(work: Workplace, hub: FakeHub) -> None:
    work.loaded()
    hub.count_anew()
    work.fetch()
    assert not hub.sent
    assert work.files() == FILES


def test_a_branch_stays_at_the_locked_commit_until_it_is_updated(
    work: Workplace, hub: FakeHub
) -> None:
    work.fetch()
    hub.repositories["org/tiny"].push({**FILES, "model.safetensors": b"better"}, NEW)
    work.fetch()
    assert work.lock["models"]["org/tiny"]["main"]["commit"] == COMMIT
    work.fetch("--update")
    assert work.lock["models"]["org/tiny"]["main"]["commit"] == NEW
    assert (work.loaded() / "model.safetensors").read_bytes() == b"better"
    assert sorted(path.name for path in work.snapshots()) == [COMMIT, NEW]


def test_another_machine_fetches_what_was_locked(work: Workplace, hub: FakeHub) -> None:
    work.fetch()
    work.cache().rename(work.folder / "gone")
    hub.repositories["org/tiny"].push({"model.safetensors": b"better"}, NEW)
    hub.paths.clear()
    work.fetch("--locked")
    assert work.files() == FILES
    assert hub.paths
    assert not any(path.startswith("/api/") for path in hub.paths), "nobody asks what is newest"


@pytest.mark.parametrize("revision", ["v1", COMMIT])
def test_a_revision_is_locked_under_its_name(work: Workplace, revision: str) -> None:
    work.write("tiny", revision=revision)
    work.fetch()
    assert list(work.lock["models"]["org/tiny"]) == [revision]
    assert work.loaded().name == COMMIT


def test_one_of_two_models_can_be_fetched(work: Workplace, hub: FakeHub) -> None:
    work.write("tiny", "second")
    work.fetch("second")
    assert not work.cache().exists()
    assert work.files("second") == FILES
    assert work.refused("fetch", "secnod") == (
        "hf-triton: models.yaml has no model 'secnod'; did you mean 'second'?\n"
    )


def test_two_models_of_one_repository_download_it_once(work: Workplace, hub: FakeHub) -> None:
    work.write("tiny", "second")
    work.fetch()
    assert hub.sent["model.safetensors"] == len(FILES["model.safetensors"])
    assert work.files() == work.files("second") == FILES
    work.write("tiny", "second", "third")
    work.fetch()
    assert hub.sent["model.safetensors"] == len(FILES["model.safetensors"])
    assert work.files("third") == FILES
    weights = [work.snapshots(name)[0] / "model.safetensors" for name in ("tiny", "third")]
    assert len({path.stat().st_ino for path in weights}) == 1


def test_a_local_model_is_listed_and_left_alone(work: Workplace) -> None:
    (work.folder / "here").mkdir()
    work.write("tiny", model="./here")
    ran = work.fetch()
    assert ran.out == "tiny: ./here is local, nothing to fetch\n"
    assert not (work.folder / "models.lock").exists()


def test_files_are_fetched_side_by_side(work: Workplace, hub: FakeHub) -> None:
    shards = {f"model-{number}.safetensors": bytes([number]) * 50_000 for number in range(6)}
    hub.repositories["org/tiny"].files = shards
    hub.before_piece = lambda _: eventually(lambda: hub.most_open > 1)
    work.fetch()
    assert hub.most_open > 1
    assert work.files() == shards


def test_a_dry_run_writes_nothing(work: Workplace, hub: FakeHub) -> None:
    ran = work.fetch("--dry-run")
    assert "7.0 kB to fetch" in ran.out
    assert [path.name for path in work.folder.iterdir()] == ["models.yaml"]
    assert not hub.sent


def test_what_does_not_fit_on_the_disk_is_refused_with_numbers(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("generator.fetch.fetching.free_space", lambda folder: (folder, 2_000))
    for more in ([], ["--dry-run"]):
        text = work.refused("fetch", *more)
        assert text.startswith("hf-triton: does not fit on the disk: ")
        assert text.endswith(" needs 7.0 kB and has 2.0 kB free, 5.0 kB too little\n")
    assert not work.snapshots()


@pytest.mark.threat("hub-token")
def test_the_token_goes_to_the_hub_and_nowhere_else(
    work: Workplace, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    hub.repositories["org/tiny"].token = SECRET
    ran = work.fetch()
    assert hub.authorizations == {f"Bearer {SECRET}"}
    assert hub.cdn_authorizations == {None}
    assert SECRET not in ran.out + ran.err
    written = [path for path in work.folder.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in path.read_bytes() for path in written)


def test_entries_that_are_no_longer_named_are_dropped(work: Workplace, hub: FakeHub) -> None:
    work.fetch()
    hub.repositories["org/other"] = Repository({"model.safetensors": b"o"})
    work.write("tiny", model="org/other")
    work.fetch()
    assert list(work.lock["models"]) == ["org/other"]


def test_a_token_that_a_login_left_is_not_used(
    work: Workplace, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    (tmp_path / "token").write_text(SECRET)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    work.fetch()
    assert hub.authorizations == {None}


def test_a_terminal_gets_a_bar_for_each_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = Progress()
    progress.begin("a", 1000, 250)
    progress.begin("b", 10, 10)
    progress.say("c: done")
    progress.end_all()
    said = capsys.readouterr().err
    for part in ("a:  25%|", "b: 100%|", "250/1.00k", "c: done\n"):
        assert part in said


def test_a_log_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Progress().begin("a", 1000, 500)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(fetching, "LINE_EVERY_S", 0.0)
    progress = Progress()
    progress.begin("a", 1000, 500)
    progress.add("a", 100)
    assert capsys.readouterr().err.endswith("a: 600 of 1.00k\n")


@pytest.mark.parametrize(
    "num_bytes, shown",
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (14_500_000_000, "14.5 GB"),
        (10**13, "10.0 TB"),
    ],
)
def test_sizes_are_those_of_the_hub(num_bytes: int, shown: str) -> None:
    assert size(num_bytes) == shown
