"""Files and batches in their database: no answer twice, none lost, and never too much."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Final

import pytest

from generator.models_yaml.server_settings import Batches
from hf_triton.batches.lines import answered
from hf_triton.batches.objects import KEEP_S, WINDOW_S, Batch, BatchRequest, ExpiresAfter, File
from hf_triton.batches.store import Store
from hf_triton.ports.openai.schema.errors import ApiError

EMBED: Final = "/v1/embeddings"
LINES = b"".join(
    json.dumps({"custom_id": f"l{n}", "method": "POST", "url": EMBED, "body": {}}).encode() + b"\n"
    for n in range(3)
)
OWNER = "alice"
DAY_S = 24 * 3600


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Store:
    return Store(Batches(folder=str(tmp_path / "kept"), max_gib=0.001), clock)


def upload(store: Store, data: bytes = LINES, keep_s: int = KEEP_S) -> File:
    return store.add_file(OWNER, io.BytesIO(data), "in.jsonl", keep_s)


def begun(store: Store, keeps: ExpiresAfter | None = None) -> Batch:
    asked = BatchRequest(upload(store).id, EMBED, "24h", None, keeps)
    store.validate(OWNER, store.add_batch(OWNER, asked))
    [(_, batch)] = store.unfinished()
    return batch


def text_of(store: Store, file_id: str | None) -> bytes:
    return b"".join(text for some in store.texts(file_id or "") for text in some)


@pytest.mark.threat("batches")
def test_a_file_is_kept_byte_by_byte(store: Store) -> None:
    data = b"\n a\r\n\nb\xff"
    file = upload(store, data)
    assert text_of(store, file.id) == data
    assert file.bytes == len(data)
    assert store.all(File, OWNER) == [file]
    assert store.all(File, "bob") == []
    store.delete_file(OWNER, file.id)
    assert text_of(store, file.id) == b""


def test_each_line_is_answered_once(store: Store, tmp_path: Path) -> None:
    batch = begun(store)
    found = store.next_unanswered(batch, 0)
    assert found
    assert found[0] == 1
    store.answer(batch, 2, True, answered("l1", {"status_code": 200}))
    store.answer(batch, 2, True, answered("l1", {"status_code": 200}))
    store.answer(batch, 2, False, answered("l1", {"status_code": 400}))
    again = Store(Batches(folder=str(tmp_path / "kept")))  # as after a kill
    found = again.next_unanswered(batch, 1)
    assert found
    assert found[0] == 3
    again.answer(batch, 1, False, answered("l0", {"status_code": 400}))
    again.answer(batch, 3, True, answered("l2", {"status_code": 200}))
    assert again.next_unanswered(batch, 0) is None
    again.finish(OWNER, batch, "completed")
    again.answer(batch, 3, True, answered("l2", {"status_code": 200}))
    ended = store.find(Batch, OWNER, batch.id)
    counts = ended.request_counts
    assert (ended.status, counts.total, counts.completed, counts.failed) == ("completed", 3, 2, 1)
    texts = [text_of(store, one) for one in (ended.output_file_id, ended.error_file_id)]
    names = [[json.loads(line)["custom_id"] for line in text.splitlines()] for text in texts]
    assert names == [["l1", "l2"], ["l0"]]
    assert store.find(File, OWNER, ended.output_file_id or "").bytes == len(texts[0])
    assert store.unfinished() == []


def test_an_expired_batch_has_an_error_for_each_line_that_is_left(
    store: Store, clock: Clock
) -> None:
    batch = begun(store)
    assert batch.expires_at == clock.now_s + WINDOW_S
    store.answer(batch, 1, True, answered("l0", {"status_code": 200}))
    store.finish(OWNER, batch, "expired")
    ended = store.find(Batch, OWNER, batch.id)
    errors = [json.loads(one) for one in text_of(store, ended.error_file_id).splitlines()]
    told = [(one["custom_id"], one["response"], one["error"]["code"]) for one in errors]
    assert told == [(name, None, "batch_expired") for name in ("l1", "l2")]


def test_mistakes_fail_a_batch(store: Store) -> None:
    wrong = upload(store, LINES + LINES[:20])
    batch = store.add_batch(OWNER, BatchRequest(wrong.id, EMBED, "24h"))
    store.validate(OWNER, batch)
    failed = store.find(Batch, OWNER, batch.id)
    assert (failed.status, failed.is_open, failed.failed_at) == ("failed", False, 1000)
    assert failed.errors
    assert [one.line for one in failed.errors.data] == [4]


@pytest.mark.threat("batches")
def test_a_full_folder_refuses_and_takes_again_what_fits(store: Store) -> None:
    file = upload(store, b"x" * 600_000)
    with pytest.raises(ApiError, match=r"database or disk is full.*at most 0.001 GiB") as caught:
        upload(store, b"y" * 600_000)
    assert (caught.value.status, caught.value.stays) == (507, True)
    assert store.all(File, OWNER) == [file]
    store.delete_file(OWNER, file.id)
    upload(store, b"y" * 600_000)


def test_files_go_when_their_time_is_over_but_not_what_a_batch_reads(
    store: Store, clock: Clock
) -> None:
    upload(store, keep_s=3600)
    batch = begun(store, ExpiresAfter(seconds=7200))
    store.answer(batch, 1, True, answered("l0", {"status_code": 200}))
    clock.now_s += KEEP_S + 1
    store.sweep()
    assert [one.id for one in store.all(File, OWNER)] == [batch.input_file_id]
    with pytest.raises(ApiError, match="a batch reads"):
        store.delete_file(OWNER, batch.input_file_id)
    store.finish(OWNER, batch, "cancelled")
    output = batch.outputs[0]
    assert [one.id for one in store.all(File, OWNER)] == [output, batch.input_file_id]
    clock.now_s += 7201
    store.sweep()
    assert store.all(File, OWNER) == store.all(Batch, OWNER) == []  # type: ignore[comparison-overlap]


def test_one_process_works_at_the_batches(store: Store, tmp_path: Path) -> None:
    assert not store.is_held(), "there is nothing"
    upload(store)
    other = Store(Batches(folder=str(tmp_path / "kept")))
    assert store.is_held()
    assert not other.is_held()
    store.close()
    assert other.is_held()
    other.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    store = Store(Batches(folder=str(tmp_path / "kept")))
    with pytest.raises(ApiError, match=r"kept can't be written \(.*File exists"):
        upload(store)
