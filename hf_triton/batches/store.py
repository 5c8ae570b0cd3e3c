"""Files and batches in one SQLite database, which is all that a server knows of them: after a kill
the next one goes on from it. Each line of a file is a row; the answers of a batch that runs are
rows of files that appear when it ends. Any thread may ask.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from generator.models_yaml.server_settings import Batches
from generator.repository.writing import has_locked
from hf_triton.batches.lines import answered, count_lines, encode, read_line
from hf_triton.batches.objects import (
    KEEP_S,
    WINDOW_S,
    Batch,
    BatchRequest,
    Counts,
    Deleted,
    File,
    Mistakes,
)
from hf_triton.ports.openai.schema.errors import ApiError, of_field

_BUSY_S = 30.0  # another process may be writing an upload
_PAGE_BYTES = 4096
_NUM_ROWS = 64  # that are read at once
# ``number`` is the order of creation, ``until`` the time at which an object is deleted.
_SETUP = f"""
PRAGMA page_size = {_PAGE_BYTES}; PRAGMA auto_vacuum = FULL;
PRAGMA journal_mode = WAL; PRAGMA journal_size_limit = 0; PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS objects(number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE,
    kind TEXT, owner TEXT, is_open INTEGER, until INTEGER, data TEXT);
CREATE TABLE IF NOT EXISTS lines(file TEXT, number INTEGER, text BLOB, PRIMARY KEY(file, number));
"""
_PUT = """
INSERT INTO objects(id, kind, owner, is_open, until, data) VALUES(?, ?, ?, ?, ?, ?)
    ON CONFLICT(id) DO UPDATE SET is_open = excluded.is_open, data = excluded.data
"""
_LIST = "SELECT data FROM objects WHERE owner = ? AND kind = ? ORDER BY number DESC"
_OPEN = "SELECT owner, data FROM objects WHERE is_open ORDER BY number"
_READ = "SELECT json_extract(data, '$.input_file_id') FROM objects WHERE is_open"
_OLD = "SELECT id FROM objects WHERE until < ? AND NOT is_open"
_UNANSWERED = """
SELECT number, text FROM lines AS line WHERE file = ? AND number > ? AND NOT EXISTS(
    SELECT 1 FROM lines WHERE file IN (?, ?) AND number = line.number) ORDER BY number
"""
_ANSWER = """
INSERT INTO lines SELECT ?, ?, ? WHERE EXISTS(SELECT 1 FROM objects WHERE id = ? AND is_open)
    AND NOT EXISTS(SELECT 1 FROM lines WHERE file IN (?, ?) AND number = ?)
"""
_COUNT = "SELECT count(*), COALESCE(sum(length(text)), 0) FROM lines WHERE file = ?"
_EXPIRED = {"code": "batch_expired", "message": "The batch expired before this request's turn."}
Kind = TypeVar("Kind", File, Batch)


class Store:
    """The database in the folder of ``settings``; both are made with the first file. What SQLite
    fails at, such as a full disk, is an ApiError (507) in every method.
    """

    def __init__(self, settings: Batches, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._settings, self._clock = Path(settings.folder), settings, clock
        self._file = self._folder / "batches.sqlite"
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None
        self._held: int | None = None

    @property
    def now_s(self) -> int:
        return int(self._clock())

    def close(self) -> None:
        if self._opened:
            self._opened.close()
        if self._held is not None:
            os.close(self._held)

    def is_held(self) -> bool:
        """Whether this process works at the batches: one does until it ends, by a lock of the
        folder. Raises OSError.
        """
        if self._held is None and self._file.exists():
            folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            if has_locked(folder):
                self._held = folder
            else:
                os.close(folder)
        return self._held is not None

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """A transaction of one of SQLite's kinds: all of it is kept, or nothing."""
        try:
            with self._lock, self._open() as db:  # commits, or rolls back
                db.execute(f"BEGIN {kind}")
                yield db
        except (sqlite3.Error, OSError) as error:
            allowed = f"at most {self._settings.max_gib:g} GiB (batches.max_gib in models.yaml)"
            text = f"{self._folder} can't be written ({error}), allowed: {allowed}"
            raise ApiError(507, text, stays=True) from None

    def _open(self) -> sqlite3.Connection:
        if self._opened is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file.touch(0o600)  # SQLite gives its other files the same mode
            db = sqlite3.connect(self._file, _BUSY_S, isolation_level=None, check_same_thread=False)
            most = int(self._settings.max_gib * 2**30) // _PAGE_BYTES
            db.executescript(f"{_SETUP} PRAGMA max_page_count = {most};")
            self._opened = db
        return self._opened

    def add_file(self, owner: str, texts: Iterable[bytes], name: str, keep_s: int) -> File:
        """Adds an upload of the key whose opaque name is ``owner``; its lines keep their ends."""
        file_id = f"file-{uuid.uuid4().hex}"
        with self._transaction() as db:
            rows = ((file_id, number, text) for number, text in enumerate(texts, 1))
            db.executemany("INSERT INTO lines VALUES(?, ?, ?)", rows)
            return self._put_file(db, owner, file_id, name, "batch", keep_s)

    def add_batch(self, owner: str, asked: BatchRequest) -> Batch:
        """Raises ApiError, 404, where the owner has no such file."""
        times: Any = {"created_at": self.now_s, "expires_at": self.now_s + WINDOW_S}
        new = Batch(id=f"batch_{uuid.uuid4().hex}", **msgspec.structs.asdict(asked), **times)
        with self._transaction() as db:
            _found(db, File, owner, asked.input_file_id, "input_file_id")
            return _put(db, owner, new)

    def find(self, kind: type[Kind], owner: str, object_id: str) -> Kind:
        """Raises ApiError, 404."""
        with self._transaction("DEFERRED") as db:
            return _found(db, kind, owner, object_id)

    def all(self, kind: type[Kind], owner: str) -> list[Kind]:
        """The newest first."""
        with self._transaction("DEFERRED") as db:
            rows = db.execute(_LIST, [owner, kind.__name__]).fetchall()
            return [_counted(db, msgspec.json.decode(data, type=kind)) for (data,) in rows]

    def delete_file(self, owner: str, file_id: str) -> Deleted:
        """Raises ApiError: 404, or 400 while a batch reads it."""
        with self._transaction() as db:
            _found(db, File, owner, file_id)
            if (file_id,) in db.execute(_READ):
                raise of_field("id", f"a batch reads '{file_id}'; cancel it first")
            _delete(db, [(file_id,)])
            return Deleted(file_id)

    def cancel(self, owner: str, batch_id: str) -> Batch:
        """Raises ApiError: 404, or 400 for one that has ended."""
        with self._transaction() as db:
            batch = _found(db, Batch, owner, batch_id)
            if not batch.is_open:
                raise of_field("id", f"the batch has ended, it is {batch.status}")
            batch.enter("cancelling", self.now_s)
            return _put(db, owner, batch)

    def texts(self, file_id: str) -> Iterator[Sequence[bytes]]:
        """Yields some lines of a file at a time, with their ends."""
        number = 0
        while True:
            with self._transaction("DEFERRED") as db:
                asked = "SELECT number, text FROM lines WHERE file = ? AND number > ? LIMIT ?"
                rows = db.execute(asked, [file_id, number, _NUM_ROWS]).fetchall()
            if not rows:
                return
            number = rows[-1][0]
            yield [text for _, text in rows]

    # Called by the runner.

    def unfinished(self) -> list[tuple[str, Batch]]:
        """The batches to work at, each with its owner, the oldest first."""
        with self._transaction("DEFERRED") as db:
            rows = db.execute(_OPEN).fetchall()
        return [(owner, msgspec.json.decode(data, type=Batch)) for owner, data in rows]

    def validate(self, owner: str, batch: Batch) -> None:
        """Reads its input: then it is in progress, or has failed."""
        texts = (text for some in self.texts(batch.input_file_id) for text in some)
        total, mistakes = count_lines(texts, batch.endpoint)
        with self._transaction() as db:
            batch = _found(db, Batch, owner, batch.id)
            if batch.status == "validating":
                batch.errors = Mistakes(mistakes) if mistakes else None
                batch.request_counts.total = total
                batch.enter("failed" if mistakes else "in_progress", self.now_s)
                _put(db, owner, batch)

    def next_unanswered(self, batch: Batch, after: int) -> tuple[int, bytes] | None:
        """The number and text of the first line without an answer behind line ``after``."""
        with self._transaction("DEFERRED") as db:
            rows = db.execute(_UNANSWERED, [batch.input_file_id, after, *batch.outputs])
            return next((row for row in rows if row[1].strip()), None)

    def answer(self, batch: Batch, number: int, is_good: bool, line: bytes) -> None:
        """Keeps an answer, unless the line has one or the batch has ended."""
        row = (batch.outputs[not is_good], number, line)
        with self._transaction() as db:
            db.execute(_ANSWER, [*row, batch.id, *batch.outputs, number])

    def finish(self, owner: str, batch: Batch, status: str) -> None:
        """Ends a batch, whose files then appear. In one that has expired, lines without an answer
        get an error.
        """
        output, errors = batch.outputs
        keeps = batch.output_expires_after
        with self._transaction() as db:
            if status == "expired" and batch.in_progress_at:
                left = db.execute(_UNANSWERED, [batch.input_file_id, 0, output, errors])
                names = [(n, read_line(text).custom_id) for n, text in left if text.strip()]
                rows = ((errors, n, answered(name, None, _EXPIRED)) for n, name in names)
                db.executemany("INSERT INTO lines VALUES(?, ?, ?)", rows)
            counts: Counts = _counted(db, batch).request_counts
            batch.output_file_id = output if counts.completed else None
            batch.error_file_id = errors if counts.failed else None
            for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
                keep_s = keeps.seconds if keeps else KEEP_S
                self._put_file(db, owner, file_id, f"{file_id}.jsonl", "batch_output", keep_s)
            batch.enter(status, self.now_s)
            _put(db, owner, batch)

    def sweep(self) -> None:
        """Deletes what is too old; files that a batch reads stay until it ends."""
        with self._transaction() as db:
            read = {*db.execute(_READ)}
            _delete(db, [row for row in db.execute(_OLD, [self.now_s]) if row not in read])

    def _put_file(
        self, db: sqlite3.Connection, owner: str, file_id: str, name: str, purpose: Any, keep_s: int
    ) -> File:
        _, size = db.execute(_COUNT, [file_id]).fetchone()
        times: Any = {"created_at": self.now_s, "expires_at": self.now_s + keep_s}
        new = File(id=file_id, bytes=size, filename=name, purpose=purpose, **times)
        return _put(db, owner, new)


def _put(db: sqlite3.Connection, owner: str, new: Kind) -> Kind:
    is_open, until = False, new.expires_at
    if isinstance(new, Batch):
        is_open, until = new.is_open, new.created_at + KEEP_S
    data = encode(new).decode()
    db.execute(_PUT, [new.id, type(new).__name__, owner, is_open, until, data])
    return new


def _found(
    db: sqlite3.Connection, kind: type[Kind], owner: str, object_id: str, param: str = "id"
) -> Kind:
    asked = "SELECT data FROM objects WHERE id = ? AND owner = ? AND kind = ?"
    row = db.execute(asked, [object_id, owner, kind.__name__]).fetchone()
    if row is None:
        text = f"you have no {kind.__name__.lower()} '{object_id[:100]}'"
        raise of_field(param, text, 404)
    found: Kind = _counted(db, msgspec.json.decode(row[0], type=kind))
    return found


def _counted(db: sqlite3.Connection, found: Any) -> Any:
    """The same file or batch, with the counts of a batch that runs."""
    if isinstance(found, Batch) and found.is_open:
        done = [db.execute(_COUNT, [file_id]).fetchone()[0] for file_id in found.outputs]
        found.request_counts.completed, found.request_counts.failed = done
    return found


def _delete(db: sqlite3.Connection, ids: Sequence[tuple[str]]) -> None:
    db.executemany("DELETE FROM objects WHERE id = ?", ids)
    db.executemany("DELETE FROM lines WHERE file = ?", ids)
