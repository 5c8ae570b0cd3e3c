"""Each way a fetch can fail, by a hostile Hub too, is one line; the other models still come."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import sys
import threading
from typing import Any

import pytest
from huggingface_hub import constants

from generator.errors import FetchError
from generator.fetch import fetching, hub_client
from generator.fetch.model_cache import ModelCache
from hf_triton.runtime.errors import LoadError
from tests.support.fake_hub import FakeHub, Repository, git_oid
from tests.support.full_disk import files_of_at_most
from tests.unit.fetch.conftest import FILES
from tests.unit.fetch.workplace import Workplace

WEIGHTS = FILES["model.safetensors"]
OTHER = {"config.json": b"{}", "model.safetensors": b"other"}


NOT_THERE = {
    "org/typo": (
        "org/typo: the Hub has no such model (check 'model'), or it is private and HF_TOKEN "
        "is not set to a token that may read it"
    ),
    "org/tiny@v9": "org/tiny@v9: the Hub has no such revision; check 'revision' in models.yaml",
    "org/gated": (
        "org/gated is gated: accept its terms on {url}/org/gated and set HF_TOKEN to a token "
        "that may read it"
    ),
    "org/pickled": (
        "org/pickled: it has weights only as pickles (pytorch_model.bin), and loading one can "
        "run code of its author: set allow_pickle: true to allow it, or a revision that has "
        "safetensors"
    ),
    "org/evil": "org/evil: '../../../evil.safetensors' is not a path inside a repository",
}


@pytest.mark.parametrize("asked", NOT_THERE)
@pytest.mark.threat("hub-file-names")
def test_what_the_hub_has_not_is_one_line(work: Workplace, hub: FakeHub, asked: str) -> None:
    hub.repositories["org/gated"] = Repository(dict(FILES), gated=True, token="hf_granted")
    hub.repositories["org/pickled"] = Repository({"config.json": b"{}", "pytorch_model.bin": b"p"})
    hub.repositories["org/evil"] = Repository({**FILES, "../../../evil.safetensors": b"e"})
    model, _, revision = asked.partition("@")
    work.write("tiny", model=model, revision=revision or None)
    text = NOT_THERE[asked].format(url=hub.url)
    assert work.refused("fetch") == f"hf-triton: 1 of 1 failed\ntiny: {text}\n"
    assert not work.snapshots()
    assert not list(work.folder.rglob("evil*"))


def test_a_locked_commit_that_is_gone_is_one_line(work: Workplace, hub: FakeHub) -> None:
    work.fetch()
    commit = hub.repositories["org/tiny"].commit
    work.cache().rename(work.folder / "gone")
    hub.repositories["org/tiny"].commit = "b" * 40
    assert work.refused("fetch").endswith(
        f"tiny: org/tiny: the Hub no longer has commit {commit}; lock another with --update\n"
    )


NO_TOKEN = "HF_TOKEN has spaces, line ends or characters that no token has: set it again"
REFUSED = r"the Hub refuses the token in HF_TOKEN \(HTTP 401\): set a valid one, or none"
NO_ADDRESS = "got HF_ENDPOINT 'hub.example', expected an address such as https://huggingface.co"
OUT_OF_REACH = (
    r"http://127.0.0.1:9 can't be reached \(ConnectError: .*\): check the network, proxy settings "
    "and HF_ENDPOINT"
)


@pytest.mark.parametrize(
    "token, endpoint, told",
    [
        ("hf_invalid", None, REFUSED),
        *((token, None, NO_TOKEN) for token in ("hf_invalid\nit", "hf_ïnvalid", "hf_invalid it")),
        ("", "http://user:invalid@127.0.0.1:9", OUT_OF_REACH),
        ("", "hub.example", NO_ADDRESS),
    ],
)
def test_a_wrong_token_or_address_is_one_line_without_a_secret(
    work: Workplace, monkeypatch: pytest.MonkeyPatch, token: str, endpoint: str | None, told: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    if endpoint:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    ran = work.run("fetch")
    assert ran.code == 1
    assert re.search(rf"hf-triton: 1 of 1 failed\ntiny: org/tiny: {told}\n$", ran.err)
    assert "nvalid" not in ran.out + ran.err


def test_offline_mode_is_one_line_where_something_is_lacking(
    work: Workplace, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert work.refused("fetch").endswith(
        "tiny: org/tiny: not in the cache, and HF_HUB_OFFLINE is set: unset it to fetch\n"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    work.fetch()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    work.fetch("--locked")


@pytest.mark.parametrize("status, path", [(429, "/api/models"), (500, "/resolve/"), (503, "/cdn/")])
def test_a_hub_that_is_busy_is_asked_again(
    work: Workplace, hub: FakeHub, status: int, path: str
) -> None:
    hub.statuses[path] = [status, status]
    ran = work.fetch()
    assert work.files() == FILES
    assert f"tiny: HTTP {status}; trying again in 0 s" in ran.err


def test_a_hub_that_stays_busy_is_one_line(work: Workplace, hub: FakeHub) -> None:
    hub.statuses["/cdn/"] = [503] * 20
    assert work.refused("fetch").endswith(
        "tiny: org/tiny: the Hub has trouble (HTTP 503): run again later; what is here is kept\n"
    )
    hub.statuses.clear()
    work.fetch()


def test_a_proxy_that_wants_a_login_is_one_line(work: Workplace, hub: FakeHub) -> None:
    hub.statuses["/api/models"] = [407]
    told = "the proxy wants a user and a password (HTTP 407): add them to its address"
    assert work.refused("fetch").endswith(f"tiny: org/tiny: {told}\n")


def test_a_wrong_hash_is_named_and_nothing_of_it_is_kept(work: Workplace, hub: FakeHub) -> None:
    bad = b"weighty" * 1000
    hub.repositories["org/tiny"].sent_instead["model.safetensors"] = bad
    text = work.refused("fetch")
    assert "tiny: org/tiny: model.safetensors was downloaded, but is not the expected file " in text
    assert text.endswith("; it was discarded\n")
    assert not work.snapshots()
    assert not any(bad in path.read_bytes() for path in work.cache().rglob("*") if path.is_file())
    hub.repositories["org/tiny"].sent_instead.clear()
    work.fetch()
    assert work.files() == FILES


@pytest.mark.parametrize("instead", [b"{ }", b""])
def test_a_wrong_file_outside_lfs_is_found_too(
    work: Workplace, hub: FakeHub, instead: bytes
) -> None:
    hub.repositories["org/tiny"].sent_instead["config.json"] = instead
    assert "tiny: org/tiny: config.json " in work.refused("fetch")
    assert not work.snapshots()


def test_what_differs_from_the_lock_is_refused_though_the_hub_calls_it_right(
    work: Workplace, hub: FakeHub
) -> None:
    work.fetch()
    work.cache().rename(work.folder / "gone")
    hub.repositories["org/tiny"].files["model.safetensors"] = b"changed" * 1000
    text = work.refused("fetch", "--locked")
    assert "model.safetensors was downloaded, but is not the expected file" in text
    expects = "models.lock expects it: if the new one is right, run hf-triton fetch --update tiny"
    assert text.endswith(f"; it was discarded. {expects}\n")
    assert not work.snapshots()


def test_the_other_models_still_come(work: Workplace, hub: FakeHub) -> None:
    hub.repositories["org/other"] = Repository(dict(OTHER), gated=True, token="hf_granted")
    models = [
        {"name": name, "task": "feature-extraction", "model": model}
        for name, model in (("tiny", "org/tiny"), ("other", "org/other"), ("typo", "org/typo"))
    ]
    work.write_models(models)
    text = work.refused("fetch")
    assert text.startswith("hf-triton: 2 of 3 failed\nother: org/other is gated")
    assert work.files() == FILES
    assert list(work.lock["models"]) == ["org/tiny"]


def test_an_unwritable_repository_is_one_line(work: Workplace) -> None:
    (work.folder / "model_repository").write_text("a file")
    expected = f"model_repository/tiny/hf_cache: can't be written: {os.strerror(20)}\n"
    assert work.refused("fetch") == f"hf-triton: {expected}"


def test_two_fetches_of_a_model_at_once_are_one_too_many(work: Workplace) -> None:
    work.fetch()
    with (work.cache() / ".hf-triton-fetch.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert work.refused("fetch") == (
            "hf-triton: model_repository/tiny/hf_cache: another hf-triton is fetching tiny; wait "
            "for that one\n"
        )
    work.fetch()


def test_a_fetch_waits_for_another_where_that_is_asked(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.fetch()
    flock = fcntl.flock
    with (work.cache() / ".hf-triton-fetch.lock").open("w") as file:
        flock(file, fcntl.LOCK_EX)

        def held_until_waited_for(descriptor: int, operation: int) -> None:
            if operation == fcntl.LOCK_EX:
                flock(file, fcntl.LOCK_UN)
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", held_until_waited_for)
        ran = work.fetch("--wait")
    expected = "another hf-triton is fetching tiny; waiting for that one\n"
    assert ran.err == f"model_repository/tiny/hf_cache: {expected}"


def test_a_full_disk_is_one_line_and_what_came_is_kept(
    work: Workplace, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system's refusal as a write really gets it: no file may grow beyond a size."""
    hub.chunk = 500
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # half a module would stay for others
    with files_of_at_most(3_000):
        text = work.refused("fetch")
    assert "model.safetensors" not in text  # the part is named
    assert text.endswith(" are free): make room and run again; what is here is kept\n")
    assert "4.0 kB more of it are to come, " in text
    assert not work.snapshots()
    (part,) = work.cache().rglob("*.incomplete")
    kept = part.stat().st_size
    assert 0 < kept <= 3_000
    hub.count_anew()
    work.fetch()
    assert hub.sent["model.safetensors"] == len(WEIGHTS) - kept
    assert work.files() == FILES


def test_a_disk_without_room_for_the_lock_is_one_line(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetching, "write", full)
    assert work.refused("fetch") == (
        "hf-triton: models.lock can't be written: No space left on device: make room and run "
        "again; what is here is kept\n"
    )


@pytest.mark.parametrize("place", ["blobs", "snapshots/{commit}/config.json", "refs"])
def test_what_is_in_the_way_is_named(work: Workplace, hub: FakeHub, place: str) -> None:
    commit = hub.repositories["org/tiny"].commit
    path = work.cache() / "models--org--tiny" / place.format(commit=commit)
    work.fetch()
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.mkdir() if place.endswith("json") else path.touch()
    text = work.refused("fetch")
    assert f"{path.relative_to(work.folder)} is in the way (" in text
    assert text.endswith("): remove it and run again\n")
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    work.fetch()
    assert work.files() == FILES


def test_a_file_that_one_model_can_not_share_fails_that_model_alone(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise FetchError("No space left on device")

    monkeypatch.setattr(ModelCache, "take", full)
    work.write("tiny", "second")
    told = "hf-triton: 1 of 2 failed\nsecond: org/tiny: No space left on device\n"
    assert work.refused("fetch") == told
    assert work.files() == FILES
    assert work.lock["models"]["org/tiny"]


def test_a_connection_that_falls_silent_is_given_up_and_gone_on_with(
    work: Workplace, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1.0)
    # On a busy machine others may fall silent for a second too.
    monkeypatch.setattr(hub_client, "WAITS_S", (0.0,) * 60)
    hub.chunk, over = 3_500, threading.Event()
    hub.before_piece = lambda start: None if hub.ranges or not start else over.wait()
    ran = work.fetch()
    over.set()
    assert "tiny: ReadTimeout: " in ran.err
    assert "bytes=3500-" in hub.ranges
    assert work.files() == FILES


@pytest.mark.threat("hub-file-names")
def test_a_link_where_a_part_belongs_is_not_followed(work: Workplace, hub: FakeHub) -> None:
    import hashlib

    precious = work.folder / "precious"
    precious.write_text("mine")
    part = hashlib.sha256(WEIGHTS).hexdigest() + ".incomplete"
    place = work.cache() / "models--org--tiny/blobs" / part
    place.parent.mkdir(parents=True)
    place.symlink_to(precious)
    assert f"{part} is in the way (" in work.refused("fetch")
    assert precious.read_text() == "mine"


@pytest.mark.parametrize(
    "flags",
    [("--locked", "--update"), *(("--max-workers", count) for count in ("0", "-1", "many", "65"))],
)
def test_flags_that_make_no_sense_are_refused(work: Workplace, flags: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as raised:
        work.run("fetch", *flags)
    assert raised.value.code == 2


TOKEN = "hf_readsit"


def weights(**changes: object) -> dict[str, object]:
    """The weights as the API lists them, with something changed."""
    lfs = {"sha256": hashlib.sha256(WEIGHTS).hexdigest(), "size": len(WEIGHTS), "pointerSize": 9}
    return {"rfilename": "model.safetensors", "lfs": {**lfs, **changes}, "blobId": "c" * 40}


def config(**changes: object) -> dict[str, object]:
    """A small file as the API lists it, with something changed."""
    return {"rfilename": "config.json", "size": 2, "blobId": git_oid(b"{}"), **changes}


@pytest.mark.parametrize(
    "answer",
    [
        {"sha": "../../../../../evil"},
        {"sha": "main"},
        {"siblings": [config(blobId="../../../../../../evil"), weights()]},
        {"siblings": [config(), weights(sha256="../../../../../../evil")]},
        {"siblings": [config(size=-1), weights()]},
        {"siblings": [config(), weights(size="7000")]},
        {"siblings": "evil"},
        b"<html>Log in to this network</html>",
        b'{"sha": ',
    ],
)
def test_an_answer_that_is_not_the_apis_is_one_line(
    work: Workplace, hub: FakeHub, answer: Any
) -> None:
    hub.description = answer
    assert work.refused("fetch").endswith(
        f"tiny: org/tiny: {hub.url} does not answer as a Hub does: check HF_ENDPOINT, and whether "
        "the login page of a proxy or network stands in between\n"
    )
    assert not (work.folder / "models.lock").exists()
    assert not list(work.folder.parent.rglob("*evil*"))
    assert not list(work.cache().rglob("*.incomplete"))


@pytest.mark.parametrize("begin", [0, 500])
def test_a_range_from_elsewhere_than_asked_is_never_put_behind_what_is_there(
    work: Workplace, hub: FakeHub, begin: int
) -> None:
    hub.cuts = [1000]
    hub.chunk = 500
    hub.ranges_begin_at = begin
    if begin:
        assert "sent bytes from 500 on, 1000 was asked for" in work.refused("fetch")
    else:
        work.fetch()
        assert work.files() == FILES


def test_what_is_wrong_after_a_cut_is_fetched_again_from_the_start(
    work: Workplace, hub: FakeHub
) -> None:
    hub.cuts = [1000]
    hub.sent_once = {"model.safetensors": b"x" * len(WEIGHTS)}
    work.fetch()
    assert work.files() == FILES


@pytest.mark.parametrize("text", [f"{TOKEN}\n", f" {TOKEN}"])
def test_space_around_a_token_is_no_part_of_it(
    work: Workplace, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", text)
    hub.repositories["org/tiny"].token = TOKEN
    work.fetch()


def test_a_token_that_can_be_none_is_not_quoted_by_the_server(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_reads\nit")
    with pytest.raises(LoadError, match=r"^HF_TOKEN has spaces, ") as raised:
        work.loaded()
    assert "reads" not in str(raised.value)


def test_an_address_out_of_reach_is_the_one_that_is_named(work: Workplace, hub: FakeHub) -> None:
    hub.cdn_url = "http://127.0.0.1:9"
    assert "tiny: org/tiny: http://127.0.0.1:9 can't be reached (Conn" in work.refused("fetch")
