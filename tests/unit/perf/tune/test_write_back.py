"""Settings in models.yaml: what changes, and that nothing else does."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import NamedTuple

import pytest

from generator.errors import PerfError
from perf.tune.space import BATCH, DELAY, INSTANCES, Settings
from perf.tune.write_back import write_settings
from tests.support.triton import DEMO_MODEL

SEQS, CACHE = "options.max_num_seqs", "options.kv_cache_gib"
MODEL = f"task: text-generation\n    model: {DEMO_MODEL}"


def write_yaml(folder: Path, text: str) -> Path:
    path = folder / "models.yaml"
    path.write_bytes(text.encode())
    return path


def changed(path: Path, wanted: Settings) -> str:
    return write_settings(path, "demo", wanted)


HEAD = f"models:\n  - name: demo\n    {MODEL}\n"
ALONE = f"- name: demo\n  task: text-generation\n  model: {DEMO_MODEL}\n"
ONE_LINE = f"name: demo, task: text-generation, model: {DEMO_MODEL}"
BATCHED = f"{HEAD}    max_batch_size: 4\n    dynamic_batching:"


class Case(NamedTuple):
    """A file, with ``[[what it was => what it becomes]]``, and the settings that do so."""

    marked: str
    wanted: Settings


CASES = {
    "a value that stands there": Case(
        f"{HEAD}    options:\n      max_num_seqs:   [[8 => 32]]  # few\n",
        {SEQS: 32},
    ),
    "a new option behind the others": Case(
        f"models:\n{ALONE}  options:\n    max_model_len: 64  # short\n"
        "[[ =>     max_num_seqs: 32\n    kv_cache_gib: 0.5\n]]  # the end\n",
        {SEQS: 32, CACHE: 0.5},
    ),
    "no options yet, and a comment after the last key": Case(
        f"models:\n  - name: demo  # mine\n    {MODEL}\n"
        "[[ =>     options: {max_num_seqs: 32}\n]]    # options:\n",
        {SEQS: 32},
    ),
    "no newline at the end": Case(
        f"models:\n  - name: demo\n    {MODEL}[[ => \n    options: {{max_num_seqs: 32}}]]",
        {SEQS: 32},
    ),
    "lines that end as on Windows": Case(
        f"{HEAD}[[ =>     options: {{max_num_seqs: 32}}\n]]".replace("\n", "\r\n"),
        {SEQS: 32},
    ),
    "a byte order mark": Case(
        f"\ufeff{HEAD}    options: {{max_num_seqs: [[8 => null]]}}\n",
        {SEQS: None},
    ),
    "everything in one line": Case(
        f"models: [{{{ONE_LINE}[[ => , options: {{max_num_seqs: 32}}, "
        "instance_group: [{count: 2}]]]}]  # short\n",
        {SEQS: 32, INSTANCES: 2},
    ),
    "a value of the defaults, which other models keep": Case(
        f"defaults:\n  options: {{max_num_seqs: 8}}\n{HEAD}"
        f"[[ =>     options: {{max_num_seqs: 32}}\n]]  - name: other\n    {MODEL}\n",
        {SEQS: 32},
    ),
    "a group of the defaults": Case(
        f"defaults:\n  instance_group:\n    - kind: KIND_CPU\n{HEAD}"
        "[[ =>     instance_group: [{count: 2, kind: KIND_CPU}]\n]]",
        {INSTANCES: 2},
    ),
    "a group of its own": Case(
        f"{HEAD}    instance_group:\n      - kind: KIND_CPU # here\n[[ =>         count: 2\n]]",
        {INSTANCES: 2},
    ),
    "a delay where batching was only on": Case(
        f"{HEAD}    max_batch_size: [[4 => 8]]\n"
        "    dynamic_batching: [[true => {max_queue_delay_microseconds: 100}]]\n",
        {BATCH: 8, DELAY: 100},
    ),
    "a delay beside preferred sizes": Case(
        f"{BATCHED}\n      preferred_batch_size: [4]  # four\n"
        "[[ =>       max_queue_delay_microseconds: 100\n]]",
        {DELAY: 100},
    ),
}
FEW = f"{HEAD}    options:\n      max_num_seqs:   8  # few\n"


@pytest.mark.parametrize("marked, wanted", CASES.values(), ids=CASES)
def test_only_the_wanted_keys_change(marked: str, wanted: Settings, tmp_path: Path) -> None:
    before, after = (
        re.sub(r"\[\[(.*?) => (.*?)\]\](?!\])", kept, marked, flags=re.DOTALL)
        for kept in (r"\1", r"\2")
    )
    path = write_yaml(tmp_path, before)
    diff = changed(path, wanted)
    assert path.read_bytes().decode() == after
    assert diff.startswith("--- ")
    assert [each.name for each in tmp_path.iterdir()] == ["models.yaml"]


def test_what_is_so_already_changes_nothing(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, FEW)
    before = path.stat()
    assert changed(path, {SEQS: 8}) == ""
    assert path.stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    "text, wanted, message",
    [
        (
            f"{BATCHED}\n      preferred_batch_size: [4]\n",
            {DELAY: None},
            "takes several lines",
        ),
        (
            f"{HEAD}    options: {{max_num_batched_tokens: 16}}\n",
            {SEQS: 32},
            "max_num_batched_tokens: got 16, expected at least",
        ),
        (
            f"defaults:\n  dynamic_batching: {{preferred_batch_size: [2]}}\n{BATCHED} true\n",
            {DELAY: 100},
            "more than these keys would change",
        ),
    ],
    ids=["several lines", "other keys", "more would change"],
)
def test_a_change_that_can_not_be_made_alone_is_refused(
    tmp_path: Path, text: str, wanted: Settings, message: str
) -> None:
    path = write_yaml(tmp_path, text)
    with pytest.raises(PerfError, match=message):
        changed(path, wanted)
    assert path.read_text() == text
    assert [each.name for each in tmp_path.iterdir()] == ["models.yaml"]


def test_rights_and_links_stay(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path = write_yaml(tmp_path / "real", FEW)
    path.chmod(0o640)
    link = tmp_path / "models.yaml"
    link.symlink_to(path)
    changed(link, {SEQS: 32})
    assert link.is_symlink()
    assert "max_num_seqs:   32" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_folder_that_takes_no_files_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, FEW)
    (tmp_path / ".models.yaml.hf-triton-tmp").mkdir()
    with pytest.raises(PerfError, match="can't be written"):
        changed(path, {SEQS: 32})
    assert path.read_text() == FEW
