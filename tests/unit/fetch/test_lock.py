"""models.lock and models.yaml must agree: what does not is named with its place and what to run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fake_hub import COMMIT, FakeHub, Repository
from tests.unit.fetch.workplace import Workplace

VERIFY = ["fetch", "--verify"]
RENDERING = [["validate"], ["generate"], ["diff"], ["fetch", "--locked"], VERIFY]


@pytest.mark.parametrize("command", RENDERING, ids=lambda command: command[0])
def test_a_model_that_is_not_locked_is_named(work: Workplace, command: list[str]) -> None:
    work.fetch()
    work.write("tiny", model="org/other")
    assert work.refused(*command) == (
        "hf-triton: 1 mistake in models.yaml\n"
        "models.yaml:6:13: models[0].model: org/other at main is not in models.lock; run hf-triton "
        "fetch tiny\n"
    )


def test_another_revision_is_named_with_what_is_locked(work: Workplace) -> None:
    work.fetch()
    work.write("tiny", revision="v1")
    assert work.refused("generate") == (
        "hf-triton: 1 mistake in models.yaml\n"
        "models.yaml:7:16: models[0].revision: org/tiny at v1 is not in models.lock (it has main); "
        "run hf-triton fetch tiny\n"
    )
    work.fetch()
    assert work.run("generate").code == 0


def test_a_revision_from_the_defaults_is_named_there(work: Workplace) -> None:
    work.fetch()
    value = json.loads((work.folder / "models.yaml").read_text())
    value["defaults"] = {"revision": "v1"}
    (work.folder / "models.yaml").write_text(json.dumps(value))
    assert ": defaults.revision: org/tiny at v1 is not in models.lock" in work.refused("validate")


ADVICE = "; restore an older one, or delete it and run hf-triton fetch to make a new one\n"


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("commit", "main", "commit: got 'main', expected a commit"),
        ("commit", None, "missing key 'commit'"),
        ("files", {}, "has no files"),
        ("files", {"../x": {"size": 1, "sha256": "a" * 64}}, "is not a path inside a repository"),
        ("files", {"x": {"size": -1, "sha256": "a" * 64}}, "size: got -1, expected a whole number"),
        ("files", {"x": {"size": 1, "sha256": "zz"}}, "sha256: got 'zz', expected a SHA-256"),
        ("files", ["x"], "files: got a list, expected a map"),
    ],
)
def test_a_damaged_lock_is_named_by_line(
    work: Workplace, key: str, value: Any, message: str
) -> None:
    work.fetch()
    lock = work.lock
    lock["models"]["org/tiny"]["main"][key] = value
    if value is None:
        del lock["models"]["org/tiny"]["main"][key]
    (work.folder / "models.lock").write_text(json.dumps(lock, indent=1))
    for command in (["generate"], ["fetch"], VERIFY):
        text = work.refused(*command)
        assert "models.lock:" in text
        assert message in text
        assert text.endswith(ADVICE)


@pytest.mark.parametrize("content", ["", "{", "<<<<<<< HEAD\n", '{"version": 2, "models": {}}'])
def test_what_is_no_lock_is_refused(work: Workplace, content: str) -> None:
    (work.folder / "models.lock").write_text(content)
    text = work.refused("generate")
    assert text.splitlines()[1].startswith("models.lock")
    assert text.endswith(ADVICE)


def test_a_lock_that_is_a_link_to_nowhere_is_not_taken_for_none(work: Workplace) -> None:
    work.fetch()
    (work.folder / "models.lock").rename(work.folder / "older")
    (work.folder / "models.lock").symlink_to("gone")
    for command in (["generate"], ["fetch"], VERIFY):
        text = work.refused(*command)
        assert text.splitlines()[1].startswith("models.lock: ")
        assert text.endswith(ADVICE)


def test_a_locked_commit_that_models_yaml_contradicts_is_named(work: Workplace) -> None:
    work.write("tiny", revision=COMMIT)
    work.fetch()
    lock = work.lock
    lock["models"]["org/tiny"][COMMIT]["commit"] = "b" * 40
    (work.folder / "models.lock").write_text(json.dumps(lock))
    text = work.refused("generate")
    assert f"models[0].revision: models.lock has commit {'b' * 40} for it" in text
    work.fetch()
    assert work.lock["models"]["org/tiny"][COMMIT]["commit"] == COMMIT


@pytest.mark.parametrize("flag", ["--locked", "--verify"])
def test_without_a_lock_there_is_nothing_to_hold_to(work: Workplace, flag: str) -> None:
    expected = "hf-triton: models.lock: no such file; run hf-triton fetch once to make it\n"
    assert work.refused("fetch", flag) == expected


def test_a_locked_fetch_leaves_the_lock_alone(work: Workplace, hub: FakeHub) -> None:
    hub.repositories["org/other"] = Repository({"model.safetensors": b"o"})
    work.fetch()
    lock = work.lock
    lock["models"]["org/dropped"] = lock["models"]["org/tiny"]
    (work.folder / "models.lock").write_text(json.dumps(lock))
    work.fetch("--locked")
    assert work.lock == lock


def test_a_partial_fetch_says_what_is_not_locked_yet(work: Workplace, hub: FakeHub) -> None:
    hub.repositories["org/other"] = Repository({"model.safetensors": b"o"})
    names = (("tiny", "org/tiny"), ("other", "org/other"))
    work.write_models(
        [{"name": name, "task": "feature-extraction", "model": model} for name, model in names]
    )
    ran = work.fetch("tiny")
    assert ran.err.endswith(
        "other: not in models.lock yet, and generate will ask for it: run hf-triton fetch\n"
    )


def test_pickles_that_are_no_longer_allowed_are_named(work: Workplace, hub: FakeHub) -> None:
    hub.repositories["org/tiny"].files = {"config.json": b"{}", "pytorch_model.bin": b"p"}
    work.write("tiny", allow_pickle=True)
    work.fetch()
    work.write("tiny", allow_pickle=False)
    text = work.refused("generate")
    assert (
        "models.yaml:7:20: models[0].allow_pickle: by models.lock, org/tiny has weights only"
        in text
    )


def test_each_configuration_has_a_lock_of_its_own(work: Workplace) -> None:
    (work.folder / "models.yaml").rename(work.folder / "others.yaml")
    work.fetch("--config", "others.yaml")
    assert (work.folder / "others.lock").exists()
    assert not (work.folder / "models.lock").exists()
