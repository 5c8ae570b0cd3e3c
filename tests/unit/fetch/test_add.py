"""``hf-triton add`` of a model on the Hub: its task by the Hub's word, else by its files."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_hub import FakeHub, Repository
from tests.unit.fetch.workplace import Workplace


@pytest.mark.parametrize(
    "said, told",
    [
        ({"pipeline_tag": "fill-mask"}, "fill-mask, by the Hub's pipeline_tag fill-mask"),
        (
            {"pipeline_tag": "sentence-similarity"},
            "feature-extraction, by the Hub's pipeline_tag sentence-similarity",
        ),
        (
            {"pipeline_tag": "object-detection"},
            "pipeline, by the Hub's pipeline_tag object-detection",
        ),
        (
            {"config": {"architectures": ["BertForMaskedLM"]}},
            "fill-mask, by its files (BertForMaskedLM); --task feature-extraction takes that",
        ),
        (
            {
                "pipeline_tag": "tabular-regression",
                "config": {"architectures": ["LlamaForCausalLM"]},
            },
            "text-generation, by its files (LlamaForCausalLM)",
        ),
    ],
)
def test_the_hub_tells_the_task(
    said: dict[str, Any], told: str, workplace: Workplace, hub: FakeHub
) -> None:
    hub.description = said
    assert workplace.run("add", "org/tiny").out == f"models.yaml:4: 'tiny' is {told}\n"
    assert workplace.run("validate").code == 0


@pytest.mark.parametrize(
    "model, said, error",
    [
        (
            "org/tiny",
            {"pipeline_tag": "text-to-video"},
            "org/tiny: its task can't be found out (text-to-video): say it with --task, one of",
        ),
        ("org/tiny", {}, "org/tiny: its task can't be found out (no architectures): say it"),
        ("org/quants", {}, "org/quants has weights only as GGUF: choose a file with gguf_file: q"),
        (
            "org/none",
            {},
            "there is no folder org/none, and org/none: the Hub has no such model (check 'mod",
        ),
        ("org/gated", {}, "org/gated: its task can't be found out (no architectures)"),
    ],
)
def test_what_the_hub_can_not_tell_is_asked_for(
    model: str, said: dict[str, Any], error: str, workplace: Workplace, hub: FakeHub
) -> None:
    hub.repositories["org/quants"] = Repository({"q.gguf": b"GGUF"})
    hub.repositories["org/gated"] = Repository({"config.json": b"{}"}, gated=True)
    hub.description = said
    assert workplace.refused("add", model).startswith(f"hf-triton: {error}")
    assert not (workplace.folder / "models.yaml").exists()


def test_a_hub_that_fails_is_not_asked_about_a_task_that_is_given(
    workplace: Workplace, hub: FakeHub
) -> None:
    hub.fails = True
    failed = workplace.refused("add", "org/tiny")
    assert failed.endswith("; with --task the Hub is not asked\n")
    hub.paths.clear()
    assert workplace.run("add", "org/tiny", "--task", "fill-mask").code == 0
    assert hub.paths == []


def test_a_lock_asks_for_a_fetch_first(workplace: Workplace) -> None:
    (workplace.folder / "models.lock").write_text('{"version": 1}')
    added = workplace.run("add", "org/tiny", "--task", "fill-mask")
    assert added.err == "hf-triton: next: hf-triton fetch, and hf-triton serve\n"
