"""A Hub that answers what no Hub should: nothing leaves the cache, and the reason is one line."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from hf_triton.runtime.errors import LoadError
from tests.support.fake_hub import FakeHub, git_oid
from tests.unit.fetch.conftest import FILES
from tests.unit.fetch.workplace import Workplace

WEIGHTS = FILES["model.safetensors"]
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


@pytest.mark.parametrize("text", ["hf_reads\nit", "hf_réads", "hf_reads it"])
def test_a_token_that_can_be_none_is_one_line_without_it(
    work: Workplace, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", text)
    refused = work.refused("fetch")
    assert refused.endswith(
        "tiny: org/tiny: HF_TOKEN has spaces, line ends or characters that no token has: set it "
        "again\n"
    )
    assert "reads" not in refused


def test_an_endpoint_that_is_no_address_is_one_line_at_once(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "hub.example:8080")
    ran = work.run("fetch")
    assert ran.err == (
        "hf-triton: 1 of 1 failed\n"
        "tiny: org/tiny: got HF_ENDPOINT 'hub.example:8080', expected an address such as "
        "https://huggingface.co\n"
    )


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
